"""How much the median of a short kernel varies between processes: ``python -m tools.repeatability [PROCESSES]``.

Each process has its own CUDA context, clock ramp, graphs and buffers. One kernel waits 5 us on the GPU's global timer;
the other is a copy that takes about as long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

PROCESSES = 20
#: Argument of a process that measures.
ONE = "--one"
RAMP_S = 0.5
#: About 5 us at 4 TB/s, bytes read and written.
COPY_BYTES = 10 * 2**20


def measure() -> dict[str, float]:
    """Kernel -> median gpu_us in this process."""
    import torch

    from spec_decode_bench.harness.timing.calibrate import Kernels
    from spec_decode_bench.harness.timing.cuda_timer import CudaTimer
    from tools.compare_timers import COPIES, graph_slope

    timer = CudaTimer(COPIES)
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    kernels = {"spin": Kernels().spins[5000], "copy": lambda: torch.bitwise_xor(source, 1, out=target)}
    timer.ramp(RAMP_S)
    return {name: graph_slope(timer, launch) for name, launch in kernels.items()}


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.repeatability", description=__doc__.partition(": ")[0])
    parser.add_argument("processes", nargs="?", type=int, default=PROCESSES, help=f"at least 2 (default {PROCESSES})")
    processes = parser.parse_args().processes
    if processes < 2:
        parser.error("one process does not show how they differ; give 2 or more")
    import torch

    if not torch.cuda.is_available():
        print("error: this tool times kernels on a GPU, and PyTorch sees none here", file=sys.stderr)
        return 2
    by_process = []
    for _ in range(processes):
        child = subprocess.run([sys.executable, "-m", __spec__.name, ONE], stdout=subprocess.PIPE, text=True)
        if child.returncode:
            return 1  # its error stands above
        by_process.append(json.loads(child.stdout.splitlines()[-1]))
    for name in by_process[0]:
        medians = [one[name] for one in by_process]
        mean, deviation = statistics.mean(medians), statistics.stdev(medians)
        print(
            f"{name}: {processes} processes, {mean:.3f} us, coefficient of variation {100 * deviation / mean:.2f} %, "
            f"{min(medians):.3f} to {max(medians):.3f} us"
        )
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == [ONE]:
        print(json.dumps(measure()))
    else:
        sys.exit(main())
