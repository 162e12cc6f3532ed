#!/usr/bin/env bash
# Draw the pictures of the documents anew from results/reference/, and write the measured parts of the documents. Those of
# servers and of error rates are drawn by bench.py plot, tools/predicted.py and tools/error_rates.py.
set -euo pipefail
shopt -s extglob
cd "$(dirname "$0")/.."
H200=results/reference/nvidia-h200 H100=results/reference/nvidia-h100 PLOTS=results/reference/plots
plot() { python bench.py plot "$@" > /dev/null; }

plot $H200/decode_tables.jsonl $H200/full.jsonl $H200/mamba_copy.jsonl --out $PLOTS
plot $H200/decode_tables.jsonl $H100/decode_tables.jsonl --by gpu --out $PLOTS/decode_tables
plot $H200/decode_loop.jsonl $H100/decode_loop.jsonl --out $PLOTS/decode_loop
plot $H200/decode_loop_mamba.jsonl $H100/decode_loop_mamba.jsonl --out $PLOTS/decode_loop_mamba
plot $H200/decode_loop_whole_step.jsonl --out $PLOTS/decode_loop_whole_step
plot $H200/full.jsonl $H100/full.jsonl --by gpu --out $PLOTS/by_gpu --only "decode_*/*_fused/*" \
    --only "paged_mqa_schedule/*_fused/*" --only "decode_step/cuda_sequence/*"
# every GPU; k_quant_gather at the point of the README's table, which the engines' run has
plot {$H200,results/reference/!(nvidia-h200)}/{full,upstream}.jsonl --by gpu --out $PLOTS/full \
    --only "!k_quant_gather/*seq_lens=ragged*" --only "!*lognormal(1024;1)*" \
    --only "!*/vllm_*" --only "!*/deep_gemm" --only "!*/sglang_*" --only "!*/flash_mla*"
plot $H100/profiles/nsys --out $PLOTS/profile
git clean -qf $PLOTS # pictures that no document shows
python -m tools.splice
