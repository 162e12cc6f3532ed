"""python candidates/summary.py run.jsonl: GPU and host time of every cell, over the old kernel of its language."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.analysis.stats import floor_us, interval
from harness.records.file import read_run

for path in sys.argv[1:]:
    run = read_run(path)
    bare = sorted(run.header.calibration.launch_host_us)
    print(f"== {path}: bare launch {bare[len(bare) // 2]:.2f} us of host time")
    points = {}
    for cell in run.cells:
        points.setdefault((cell.operator, cell.key.split("/", 2)[-1]), []).append(cell)
    for (operator, label), cells in points.items():
        timed = {c.variant: interval(c, "gpu_us") for c in cells if c.metrics}
        bytes_moved = next((c.metrics.bytes_moved for c in cells if c.metrics), None)
        floor = f", floor {floor_us(run.header.calibration, bytes_moved):.2f}" if bytes_moved else ""
        print(f"{operator} {label}{floor}")
        for cell in cells:
            if not cell.metrics:
                print(f"    {cell.variant:20} {cell.status}: {str(cell.reason)[:150]}")
                continue
            old = timed.get("cuda_fused" if cell.variant.startswith("cuda") else "triton_fused")
            gpu, host, eager = (interval(cell, name) for name in ("gpu_us", "host_us", "eager_us"))
            ratio = f"{gpu.median / old.median:6.3f}" if gpu and old else "     -"
            shown = f"{gpu.median:7.3f} [{gpu.low:.3f} {gpu.high:.3f}]" if gpu else "no graph"
            print(f"    {cell.variant:20} gpu {shown} x{ratio}  host {host.median:6.2f}  eager {eager.median:6.2f}")
