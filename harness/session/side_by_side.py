"""Several sessions of one device beside each other, for work that is not timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from spec_decode_bench.harness.config.work_items import WorkItem
from spec_decode_bench.harness.session.messages import Job, Ready
from spec_decode_bench.harness.session.several_gpus import SHOWN_EVERY_S, LocalGpu
from spec_decode_bench.harness.session.worker import Worker

#: At most so many processes verify at a time, one for so many cores.
PROCESSES, CORES = 8, 2

#: Runs a work item in the session of a lane.
Ask = Callable[[WorkItem], Iterator[Any]]
Work = Callable[[Ask], None]


def processes() -> int:
    """That may verify at a time here."""
    return min(max(len(os.sched_getaffinity(0)) // CORES, 1), PROCESSES)


def side_by_side(
    job: Job,
    lanes: Sequence[Iterator[Work]],
    begin: Callable[[Ready], None] = lambda ready: None,
    show: Callable[[str], None] = lambda doing: None,
    start: Callable[[Job], Worker] = Worker,
) -> None:
    """Each lane has a session, in a thread, and does the tasks of its iterator, which it may share with others.

    begin: called by the first lane, which compiles the CUDA sources of the job, once its session is there.
    show:  called now and then with what they are doing.
    start: as in Session.

    Raises RunError where a session cannot go on; then, and on Ctrl-C, all processes are ended.
    """
    sessions = [
        LocalGpu(f"process {number}", replace(job, compiled=() if number else job.compiled), start)
        for number in range(len(lanes))
    ]

    def work(session: LocalGpu, tasks: Iterator[Work]) -> None:
        try:
            ready = session.start()
            if session is sessions[0]:
                begin(ready)
            for task in tasks:
                task(lambda item: session.outcomes([item]))
        finally:
            session.close(30.0)

    with ThreadPoolExecutor(max(len(lanes), 1), thread_name_prefix="session") as threads:
        try:
            pairs = zip(sessions, lanes, strict=True)
            futures = [threads.submit(work, session, lane) for session, lane in pairs]
            pending = set(futures)
            while pending:
                done, pending = wait(pending, SHOWN_EVERY_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                show(next(filter(None, (session.doing for session in sessions)), ""))
        except BaseException:
            for session in sessions:
                session.abort()
            raise
