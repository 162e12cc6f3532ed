// k_quant_gather with the fault of vLLM #40772: the grid covers the host's upper bound of the tokens. A token past the
// exact count finds no request, so the shared word for its request keeps what it held before.
//
// Here that is the same in every run, a number beyond the last request, so that the read lies outside of the block table.
//
// Grid: a block per token. Block: one warp.
extern "C" __global__ void gather_by_bound(
    const unsigned char* kv_cache, const int* block_table, const int* cu_seq_lens, unsigned char* k, unsigned char* scale,
    int batch_size, int table_stride, int block_stride, int block_size, int head_dim, int scale_bytes) {
    __shared__ int word;
    const int token = blockIdx.x;
    if (threadIdx.x == 0) word = cu_seq_lens[batch_size] + batch_size + token;
    __syncthreads();
    for (int b = threadIdx.x; b < batch_size; b += blockDim.x) {
        if (cu_seq_lens[b] <= token && token < cu_seq_lens[b + 1]) word = b;
    }
    __syncthreads();
    const int request = word;
    const int position = token - cu_seq_lens[min(request, batch_size)];
    const int block = block_table[(long long)request * table_stride + position / block_size];
    const unsigned char* page = kv_cache + (long long)block * block_stride;
    const int offset = position % block_size;
    for (int i = threadIdx.x; i < head_dim; i += blockDim.x) k[(long long)token * head_dim + i] = page[offset * head_dim + i];
    for (int i = threadIdx.x; i < scale_bytes; i += blockDim.x) {
        scale[(long long)token * scale_bytes + i] = page[block_size * head_dim + offset * scale_bytes + i];
    }
}
