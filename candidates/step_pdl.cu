// decode_step with programmatic dependent launch: a launch may begin while the one before still runs, and waits for its
// end before it reads anything. Loads must not be marked constant, or they could move above that wait.
#define __restrict__
#if __CUDA_ARCH__ >= 900
#define BEGIN asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#else
#define BEGIN
#endif
#include "step.cu"
