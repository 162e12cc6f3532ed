"""How much the median of a short kernel varies between processes: ``python -m tools.repeatability [PROCESSES]``.

Each process has its own CUDA context, clock ramp, graphs and buffers. One kernel waits 5 us on the GPU's global timer;
the other is a copy that takes about as long.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

PROCESSES = 20
RAMP_S = 0.5
#: About 5 us at 4 TB/s, bytes read and written.
COPY_BYTES = 10 * 2**20


def measure() -> dict[str, float]:
    """Kernel -> median gpu_us in this process."""
    import torch

    from harness.timing.calibrate import Kernels
    from harness.timing.cuda_timer import CudaTimer
    from tools.compare_timers import COPIES, graph_slope

    timer = CudaTimer(COPIES)
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    kernels = {"spin": Kernels().spins[5000], "copy": lambda: torch.bitwise_xor(source, 1, out=target)}
    timer.ramp(RAMP_S)
    return {name: graph_slope(timer, launch) for name, launch in kernels.items()}


def main(processes: int) -> None:
    import torch

    if not torch.cuda.is_available():
        print("error: this tool times kernels on a GPU, and PyTorch sees none here", file=sys.stderr)
        sys.exit(2)
    by_process = []
    for _ in range(processes):
        child = subprocess.run([sys.executable, "-m", __spec__.name, "one"], capture_output=True, text=True, check=True)
        by_process.append(json.loads(child.stdout.splitlines()[-1]))
    for name in by_process[0]:
        medians = [one[name] for one in by_process]
        mean, deviation = statistics.mean(medians), statistics.stdev(medians)
        print(
            f"{name}: {processes} processes, {mean:.3f} us, coefficient of variation {100 * deviation / mean:.2f} %, "
            f"{min(medians):.3f} to {max(medians):.3f} us"
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["one"]:
        print(json.dumps(measure()))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else PROCESSES)
