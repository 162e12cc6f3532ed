"""`bench.py run --gpus` and `--cluster`: a plan whose points several GPUs share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from spec_decode_bench.cli.run import in_turn
from spec_decode_bench.harness.command.recording import Plan, default_folder, record
from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.report.console import make_console, warn
from spec_decode_bench.harness.session.several_gpus import Gpu, LocalGpu, SeveralGpus
from spec_decode_bench.harness.session.worker import Worker
from spec_decode_bench.harness.timing.gpus import choose_gpus


def check_sharing(options: argparse.Namespace, of_rooms: bool) -> None:
    """Raises ConfigError where --gpus or --cluster cannot be combined with the rest, or these GPUs cannot be used."""
    if options.accelerators is not None and options.cluster is None:
        raise ConfigError("--accelerators chooses GPUs of a cluster; give --cluster, too")
    flag = "--cluster" if options.cluster is not None else "--gpus"
    if of_rooms:
        raise ConfigError(f"{flag} shares the points of a sweep; run other configurations on one GPU, without it")
    if flag == "--gpus":
        if options.device == "cpu":
            raise ConfigError("--gpus and --device cpu exclude each other")
        options.device = "cuda"
        try:
            options.chosen_gpus = choose_gpus(options.gpus)
        except RuntimeError as error:
            raise ConfigError(str(error)) from None


def measure_shared(options: argparse.Namespace, plan: Plan) -> int:
    """On GPUs of this machine, or a record for each model of --accelerators, one after the other; the first exit code
    that is not 0.
    """
    if options.cluster is None:
        jobs = {f"GPU {gpu.index}": replace(plan.job, gpu=gpu.visible, host_lock=True) for gpu in options.chosen_gpus}
        return _shared(plan, [LocalGpu(name, job, Worker) for name, job in jobs.items()])

    from spec_decode_bench.harness.session.cluster import chosen, cluster_gpus, connected

    with connected(options.cluster, options.variants) as present:
        counts = chosen(present, options.accelerators, options.gpus)
        if plan.resumed and len(counts) > 1:
            raise ConfigError("--resume completes one record; name its model with --accelerators")

        def measure(model: str) -> int:
            out = plan.out
            if options.accelerators is not None and not plan.resumed:
                out = out / model if out else default_folder(plan.source.config.name, model)
            return _shared(replace(plan, out=out), cluster_gpus(plan.job, model, counts[model]))

        return in_turn(map(measure, counts))


def _shared(plan: Plan, gpus: Sequence[Gpu]) -> int:
    return record(make_console(), plan, SeveralGpus(gpus, plan.job.measure, warn))
