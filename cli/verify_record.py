"""The lines of a verification: what the console prints, and what ``verify --out FOLDER`` writes to FOLDER/run.jsonl."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from spec_decode_bench.harness.command.recording import command_line
from spec_decode_bench.harness.config.load import LoadedConfig
from spec_decode_bench.harness.config.work_items import AtPoint, Check, Result, Task
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.discover import Catalog
from spec_decode_bench.harness.records.file import Writer
from spec_decode_bench.harness.records.schema import CheckLine, Header, Where
from spec_decode_bench.harness.session.messages import Job, Ready
from spec_decode_bench.harness.session.session import header
from spec_decode_bench.harness.session.sources import source_hashes


class CheckLines:
    """A context manager, whose methods any thread may call.

    folder: of the record; None writes none. header: its first line, for what the first process says of the machine.
    """

    def __init__(self, folder: Path | None, header: Callable[[Ready], Header]) -> None:
        #: By variant, "operator/variant".
        self.of: dict[str, list[CheckLine]] = {}
        #: As in the header of a record.
        self.compiled: dict[str, dict[str, str]] = {}
        self._header, self._begun, self._lock = header, False, threading.Lock()
        self._writer = None if folder is None else Writer(folder / "run.jsonl", resumable=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def all(self) -> list[CheckLine]:
        return [line for of in self.of.values() for line in of]

    def begin(self, ready: Ready) -> None:
        """With the header; other processes may have found something before. Raises RecordError."""
        with self._lock:
            self._begun, self.compiled = True, ready.compiled
            if self._writer is not None:
                for line in (self._header(ready), *self.all):
                    self._writer.write(line)

    def keep(self, item: Check, found: Iterable[Result]) -> None:
        """A line for each finding of an item, as soon as it is there. Raises RecordError."""
        planned = Where(item.where.place, item.where.label) if isinstance(item.where, AtPoint) else None
        for one in found:
            self._add(CheckLine.of(one.operator, one.variant, one.finding, sum(one.seconds.values()), planned))

    def _add(self, line: CheckLine) -> None:
        """On disk before the next one. Raises RecordError, for example where the disk is full."""
        with self._lock:
            self.of.setdefault(line.variant_id, []).append(line)
            if self._writer is not None and self._begun:
                self._writer.write(line)


def record(
    folder: Path | None,
    job: Job,
    catalog: Catalog,
    source: LoadedConfig | None,
    items: Sequence[Task],
    variants: Sequence[Variant],
) -> CheckLines:
    """The lines of a verification of these variants. source, items: the configuration and its points, if there is one.

    Raises RecordError where the folder has a record.
    """
    name = "defects" if all(variant.defect for variant in variants) else "variants"
    config = source.recorded if source else {"name": name, "measure": msgspec.to_builtins(job.measure)}
    first_line = partial(
        header,
        config=config,
        command=command_line(),
        seed=job.seed,
        variants=tuple(variant.id for variant in variants),
        sources={} if folder is None else source_hashes(items, catalog, job.variant_files),
    )
    return CheckLines(folder, first_line)
