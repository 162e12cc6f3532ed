"""The device's side of a step without the stack: the host's entries, the stand-in model step, acceptance, counts back.

``CudaDevice`` launches loop.cu. ``CpuDevice`` does the same with numpy and a busy wait, for a miniature of the loop
whose times say nothing about a GPU. Both offer:

    write(parity, entries)   add the host's entries to the tables
    model(tables)            -> closure: the model step, which reads these tables into checksums[step, number]
    drafter(tables)          -> closure: reads tables of the end of a step likewise, and takes no time beyond that
    accept(parity)           tokens of every row, from counter-based random numbers; by slot, their ids and new drafts
    fetch(step)              start the copy of the counts to the host;  wait(step) waits for it and returns them
    end_of_model(step)       note that the model step is queued to here;  is_done(step): whether it has ended
    start_block()            forget the times and checksums of the last block
    times(), checksums(n)    of the block, after ``synchronize``
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.decode_loop.engine_state import Consumed
from spec_decode_bench.decode_loop.hashing import checksum, draw
from spec_decode_bench.decode_loop.sampling import new_tokens, start_requests
from spec_decode_bench.decode_loop.state import Engine
from spec_decode_bench.decode_loop.workload import Workload

SOURCE = Path(__file__).with_name("loop.cu")
#: Kernels of the model step that stream bytes and wait, each for an equal share of the time.
MODEL_KERNELS = 16
#: Bytes that a model step streams, in sizes of the L2 cache: enough to evict all of it.
STREAMED_L2 = 2


@dataclass(frozen=True)
class BlockTimes:
    """Microseconds; both have one entry less than there are steps.

    itl: between the ends of consecutive model steps.
    gap: from the end of a model step to the beginning of the next one: the device works on metadata, or is idle.
    """

    itl: list[float]
    gap: list[float]


class CudaDevice:
    def __init__(self, engine: Engine, workload: Workload, num_tables: int, model_step_us: float) -> None:
        from spec_decode_bench.harness.cuda import launcher
        from spec_decode_bench.harness.cuda_graph import GraphCapture

        self._launcher, self._capture = launcher, GraphCapture()
        self._graphs: list[Any] = []  # kept alive
        self._engine, self._workload = engine, workload
        shape, steps = workload.shape, workload.steps_per_block
        zeros = lambda *size, kind=torch.int64: torch.zeros(*size, dtype=kind, device="cuda")  # noqa: E731
        self._clock, self._begins, self._ends = zeros(2), zeros(steps), zeros(steps)
        self._sums = zeros(steps, num_tables)
        self._num_tables = num_tables
        self._model_ns = round(model_step_us * 1000)
        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._streamed = zeros(STREAMED_L2 * l2 // 16 * 4, kind=torch.int32)
        self._sink = zeros(1, kind=torch.int32)
        state = engine.state
        words = engine.layout.words
        self._write = [
            launcher(SOURCE, "write_entries", 32, 256, staged, engine.arena, words) for _, staged in engine.staging
        ]
        acceptance, slots, seed = workload.acceptance, state.slots, ctypes.c_uint64(workload.seed)
        thresholds = torch.tensor(acceptance.thresholds or (0,), dtype=torch.int64, device="cuda")
        lengths = torch.tensor(acceptance.lengths or (0,), dtype=torch.int32, device="cuda")
        self._accept = [
            launcher(
                SOURCE,
                "accept",
                -(-shape.num_requests // 128),
                128,
                state.requests,
                state.num_computed_tokens[parity],
                state.valid,
                shape.num_requests,
                shape.num_drafts,
                thresholds,
                lengths,
                len(acceptance.lengths),
                seed,
                *((slots.idx_mapping, slots.sampled_tokens, slots.draft_tokens) if slots else [ctypes.c_uint64(0)] * 3),
            )
            for parity in (0, 1)
        ]
        self._start = slots and [
            launcher(
                SOURCE,
                "start_requests",
                -(-shape.num_requests // 128),
                128,
                state.fresh.view(torch.uint8),
                state.requests,
                slots.idx_mapping,
                state.num_computed_tokens[parity],
                slots.last_sampled_tokens,
                slots.draft_tokens,
                shape.num_requests,
                shape.num_drafts,
                seed,
            )
            for parity in (0, 1)
        ]
        self._host_counts = torch.zeros(steps, shape.num_requests, dtype=torch.int32, pin_memory=True)
        self._host_rows = list(self._host_counts)
        self._counts = self._host_counts.numpy()
        self._valid = state.valid[: shape.num_requests]
        self._model_ended = [torch.cuda.Event(enable_timing=True) for _ in range(steps)]
        self._counts_there = [torch.cuda.Event() for _ in range(steps)]

    def write(self, parity: int, entries: int) -> None:
        if entries:
            host, device = self._engine.staging[parity]
            device[: 1 + 2 * entries].copy_(host[: 1 + 2 * entries], non_blocking=True)
            self._write[parity]()
            if self._start:
                self._start[parity]()

    def model(self, tables: Mapping[int, Consumed]) -> Callable[[], None]:
        """The launches of the model step, to be captured."""
        launches = [self._launcher(SOURCE, "begin_model", 1, 1, self._clock, self._begins)]
        launches += [self._consumer(table, number) for number, table in tables.items()]
        words, sms = len(self._streamed) // 4, 4 * self._workload.shape.num_sms
        for i in range(MODEL_KERNELS):
            first, last = (words * k // MODEL_KERNELS for k in (i, i + 1))
            until = self._model_ns * (i + 1) // MODEL_KERNELS
            span = [ctypes.c_longlong(first), ctypes.c_longlong(last), self._clock, ctypes.c_longlong(until)]
            launches.append(self._launcher(SOURCE, "stream_until", sms, 256, self._streamed, *span, self._sink))
        launches.append(self._launcher(SOURCE, "end_model", 1, 1, self._clock, self._ends))
        return in_sequence(*launches)

    def drafter(self, tables: Mapping[int, Consumed]) -> Callable[[], None]:
        """To be captured as well."""
        return in_sequence(*(self._consumer(table, number, behind=1) for number, table in tables.items()))

    def _consumer(self, table: Consumed, number: int, behind: int = 0) -> Callable[[], None]:
        values = table.values
        rows, columns, stride = (1, len(values), 0) if values.dim() == 1 else (*values.shape, values.stride(0))
        kernel = {torch.int32: "consume_int32", torch.int64: "consume_int64"}[values.dtype]
        lengths = ctypes.c_uint64(0) if table.row_lengths is None else table.row_lengths
        return self._launcher(
            SOURCE,
            kernel,
            min(rows, 2048),
            128,
            values,
            rows,
            columns,
            ctypes.c_longlong(stride),
            lengths,
            table.unit,
            int(table.idle is not None),
            table.idle or 0,
            self._clock,
            self._sums,
            self._num_tables,
            number,
            behind,
        )

    def captured(self, launch: Callable[[], Any]) -> Callable[[], None]:
        """The replay of a graph of one launch. Raises what the capture raises."""
        graph = self._capture.graph(launch, 1)
        self._graphs.append(graph)
        return graph.replay

    def accept(self, parity: int) -> None:
        self._accept[parity]()

    def end_of_model(self, step: int) -> None:
        self._model_ended[step].record()

    def is_done(self, step: int) -> bool:
        return self._model_ended[step].query()

    def fetch(self, step: int) -> None:
        self._host_rows[step].copy_(self._valid, non_blocking=True)
        self._counts_there[step].record()

    def wait(self, step: int) -> np.ndarray:
        self._counts_there[step].synchronize()
        return self._counts[step]

    def start_block(self) -> None:
        self._clock.zero_()
        self._sums.zero_()
        torch.cuda.synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def times(self, steps: int) -> BlockTimes:
        ended = self._model_ended
        itl = [1000 * ended[i - 1].elapsed_time(ended[i]) for i in range(1, steps)]
        begins, ends = self._begins.cpu().numpy(), self._ends.cpu().numpy()
        return BlockTimes(itl, ((begins[1:steps] - ends[: steps - 1]) / 1000).tolist())

    def checksums(self) -> np.ndarray:
        """uint64 [steps, tables]."""
        return self._sums.cpu().numpy().view(np.uint64)

    def counts(self) -> np.ndarray:
        """int32 [steps, R]."""
        return self._counts.copy()


class CpuDevice:
    def __init__(self, engine: Engine, workload: Workload, num_tables: int, model_step_us: float) -> None:
        self._engine, self._workload, self._model_s = engine, workload, model_step_us * 1e-6
        steps = workload.steps_per_block
        self._arena = engine.arena.numpy()
        self._flags = self._arena.view(np.uint8)[4 * engine.layout.words :]
        self._sums = np.zeros((steps, num_tables), dtype=np.uint64)
        self._counts = np.zeros((steps, workload.shape.num_requests), dtype=np.int32)
        self._begins, self._ends, self._step = [0.0] * steps, [0.0] * steps, 0
        state = engine.state
        self._requests, self._valid = state.requests.numpy(), state.valid.numpy()
        self._computed = [tensor.numpy() for tensor in state.num_computed_tokens]

    def write(self, parity: int, entries: int) -> None:
        staged, words = self._engine.staging[parity][0].numpy()[1 : 1 + 2 * entries], self._engine.layout.words
        places, values = staged[-2::-2], staged[::-2]  # backwards: on a GPU entries are written in any order
        inside = places < words
        self._arena[places[inside]] = values[inside]
        self._flags[places[~inside] - words] = values[~inside]
        if self._engine.state.slots and entries:
            start_requests(self._engine.state, np.flatnonzero(self._flags), parity, self._workload.seed)

    def model(self, tables: Mapping[int, Consumed]) -> Callable[[], None]:
        def launch() -> None:
            began = time.perf_counter()
            self._begins[self._step] = began
            self._read(tables, self._step)
            while time.perf_counter() < began + self._model_s:
                pass
            self._ends[self._step] = time.perf_counter()
            self._step += 1

        return launch

    def drafter(self, tables: Mapping[int, Consumed]) -> Callable[[], None]:
        return lambda: self._read(tables, self._step - 1)

    def _read(self, tables: Mapping[int, Consumed], step: int) -> None:
        for number, table in tables.items():
            lengths = None if table.row_lengths is None else table.row_lengths.numpy()
            self._sums[step, number] = checksum(table.values.numpy(), lengths, table.unit, table.idle)

    def captured(self, launch: Callable[[], Any]) -> Callable[[], None]:
        return launch

    def accept(self, parity: int) -> None:
        shape, acceptance, rows = self._workload.shape, self._workload.acceptance, self._workload.shape.num_requests
        state = self._engine.state
        lines = state.slots.idx_mapping[:rows].numpy() if state.slots else slice(rows)
        requests, computed = self._requests[:rows], self._computed[parity][lines]
        if acceptance.lengths:
            drawn = draw(self._workload.seed, requests, computed) % np.uint64(len(acceptance.lengths))
            self._valid[:rows] = np.array(acceptance.lengths)[drawn.astype(np.int64)]
        else:
            positions = computed[:, None].astype(np.int64) + np.arange(shape.num_drafts)
            drawn = draw(self._workload.seed, requests[:, None], positions)
            accepted = drawn < np.array(acceptance.thresholds, dtype=np.uint64)
            self._valid[:rows] = 1 + np.cumprod(accepted, axis=1).sum(axis=1)
        if state.slots:
            new_tokens(state, parity, self._workload.seed)

    def end_of_model(self, step: int) -> None:
        pass

    def is_done(self, step: int) -> bool:
        return True

    def fetch(self, step: int) -> None:
        self._counts[step] = self._valid[: self._workload.shape.num_requests]

    def wait(self, step: int) -> np.ndarray:
        return self._counts[step]

    def start_block(self) -> None:
        self._step = 0
        self._sums[:] = 0

    def synchronize(self) -> None:
        pass

    def times(self, steps: int) -> BlockTimes:
        begins, ends = np.array(self._begins[:steps]), np.array(self._ends[:steps])
        return BlockTimes((1e6 * np.diff(ends)).tolist(), (1e6 * (begins[1:] - ends[:-1])).tolist())

    def checksums(self) -> np.ndarray:
        return self._sums

    def counts(self) -> np.ndarray:
        return self._counts.copy()


Device = CudaDevice | CpuDevice


def make_device(device: str, engine: Engine, workload: Workload, num_tables: int, model_step_us: float) -> Device:
    """device: "cuda" or "cpu"."""
    kind = CudaDevice if device == "cuda" else CpuDevice
    return kind(engine, workload, num_tables, model_step_us)
