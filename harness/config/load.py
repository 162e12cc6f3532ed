"""Reads the YAML of a run strictly: an unknown key, a wrong type or an unreadable file is an error with file and line.

docs/configuration.md describes every key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os.path import exists, relpath
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
import yaml

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.analysis.cache_states import CacheName
from spec_decode_bench.harness.analysis.itl_tpot import ServingModel
from spec_decode_bench.harness.errors import UsageError, did_you_mean

CONFIGS = Path(__file__).parents[2] / "configs"

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Section = TypeVar("Section", bound=msgspec.Struct)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e4 as text; here it is a number, as in YAML 1.2 and JSON."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+\Z"), list("-+0123456789")
)


class ConfigError(UsageError):
    """A configuration cannot be used. The message starts with file, line and key path where they are known."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long and how often to measure.

    seed:                 of all random inputs; if not given, a fresh one in every run, which is recorded.
    time_budget_s:        seconds of sampling in the whole run, divided among the remaining cells.
    min_rounds:           least number of rounds of a cell.
    max_rounds:           rounds after which a cell stops even if it has not settled.
    graph_copies:         copies of a launch in the captured graphs whose slope is gpu_us: the two smallest, and the
                          largest that is not too long (harness/timing/cuda_timer.py).
    cache:                what a timed call finds in L2; checked in every run (harness/analysis/cache_states.py).
    audit:                whether a second process checks every cell with CUPTI and counts what a launch does.
    timeout_s:            seconds without a heartbeat after which a variant counts as hung.
    interpreter_budget_s: seconds that Triton's interpreter may spend on each variant at the points of a sweep on a CPU.
    """

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    time_budget_s: Seconds = 60.0
    min_rounds: Annotated[int, msgspec.Meta(ge=3)] = 10
    max_rounds: Annotated[int, msgspec.Meta(ge=3)] = 40
    graph_copies: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=2)] = (1, 4, 16, 32)
    cache: CacheName = "hot"
    audit: bool = True
    timeout_s: Seconds = 120.0
    interpreter_budget_s: Seconds = 8.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole configuration, without the sections of rooms.

    operators:   names; required for a sweep.
    variants:    "all", or globs over variant or operator/variant; ``!`` in front of a glob excludes.
    sweep:       a union of grids, each a mapping of axes to values; required for a sweep, too.
    baseline:    the variant that speed-ups and deltas refer to: a name, for the operators that have it, or a mapping of
                 operators to names. An operator without one keeps its own. Of a sweep only.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[\w-][\w.-]*\Z")]
    operators: Annotated[list[str], msgspec.Meta(min_length=1)] = []
    sweep: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] = []
    variants: str | Annotated[list[str], msgspec.Meta(min_length=1)] = "all"
    baseline: str | dict[str, str] | None = None
    measure: Measure = Measure()
    itl_tpot: ServingModel | None = None


#: Sections that any configuration may have, and their schemas.
OWN_SECTIONS = {"measure": Measure, "itl_tpot": ServingModel}
#: Keys that a sweep needs.
OF_A_SWEEP = ("operators", "sweep")


def schema_of(key: str) -> type[msgspec.Struct] | None:
    """Of a section of a configuration; None for another key."""
    return registry.section(key).schema if key in registry.ROOMS else OWN_SECTIONS.get(key)


def top_keys() -> list[str]:
    return [*Config.__struct_fields__, *registry.ROOMS]


@dataclass(frozen=True)
class Located:
    """Makes the errors of a configuration. lines: key path, such as ``sweep[0].next_n[1]``, -> its line in the file, or
    ``--set`` and the key where it was set on the command line.
    """

    path: str
    lines: Mapping[str, int | str] = field(default_factory=dict)

    def error(self, key: str, message: str) -> ConfigError:
        """At the line of a key path, at its ``--set``, or at the nearest enclosing key that has either."""
        known = key
        while known and known not in self.lines:
            known = known[: max(known.rfind("."), known.rfind("["), 0)]
        place = f"{self.path}:{self.lines[known]}" if known else self.path
        if known and isinstance(self.lines[known], str):
            return ConfigError(f"{self.lines[known]}: {message}")
        return ConfigError(f"{place}: {key}: {message}" if key else f"{place}: {message}")

    def unknown(self, key: str, kind: str, name: object, valid: Iterable[str]) -> ConfigError:
        """A name at a key that is none of the valid ones."""
        return self.error(key, f"unknown {kind} {name!r}{did_you_mean(str(name), list(valid))}")

    def converted(self, data: Mapping[str, Any], struct: type[Section], key: str = "") -> Section:
        """The section at a key path, every key and type of it checked."""
        if isinstance(data, dict):
            self.check_names(data, struct, key)
        try:
            return msgspec.convert(data, struct)
        except msgspec.ValidationError as error:  # its text alone has the path
            message, _, where = str(error).partition(" - at ")
            inner = f"{key}{where.rpartition('$')[2].rstrip('`')}".lstrip(".")
            raise self.error(inner, _in_words(message) + _choices(inner)) from None

    def check_names(self, data: Mapping[str, Any], struct: type, key: str = "") -> None:
        """Raises ConfigError for an unknown key, with the nearest valid name, and for a missing one."""
        fields = {f.name: f for f in msgspec.structs.fields(struct)}
        names = list(fields) if key else top_keys()
        prefix = f"{key}." if key else ""
        for name, value in data.items():
            if name not in names:
                raise self.error(f"{prefix}{name}", f"unknown key{did_you_mean(str(name), names)}")
            if not key and isinstance(value, dict) and (schema := schema_of(name)):
                self.check_names(value, schema, name)
        for name, spec in fields.items():
            if spec.required and name not in data:
                raise self.error(key, f"the key {prefix}{name} is missing")


@dataclass(frozen=True, kw_only=True)
class LoadedConfig(Located):
    """A loaded configuration. section: what it measures instead of a sweep; settings: that section, by its schema."""

    config: Config
    section: registry.Section | None = None
    settings: Any = None

    @property
    def recorded(self) -> dict[str, Any]:
        """As plain values, defaults filled in."""
        measured = self.section and self.section.key
        settings = {key: self.settings if key == measured else None for key in registry.ROOMS}
        return msgspec.to_builtins(self.config) | msgspec.to_builtins(settings)


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> LoadedConfig:
    """Read a configuration and apply ``--set`` overrides. Raises ConfigError."""
    path = str(path)
    data, lines = _read(path)
    for key, value in (overrides or {}).items():
        _override(path, data, lines, key, value)
    file = Located(path, lines)
    file.check_names(data, Config)
    section = _section_of(file, data)
    config = file.converted({key: value for key, value in data.items() if key not in registry.ROOMS}, Config)
    settings = file.converted(data[section.key], section.schema, section.key) if section else None
    if len(set(config.measure.graph_copies)) < 2:
        raise file.error("measure.graph_copies", "needs two different numbers of copies, or there is no slope")
    if config.measure.min_rounds > config.measure.max_rounds:
        raise file.error("measure.min_rounds", "must not exceed measure.max_rounds")
    return LoadedConfig(path, lines, config=config, section=section, settings=settings)


def _section_of(file: Located, data: Mapping[str, Any]) -> registry.Section | None:
    """What a configuration measures instead of a sweep. Raises ConfigError where it is neither, or both."""
    if key := next((key for key in registry.ROOMS if key in data), None):
        section = registry.section(key)
        section.check(file, data)
        return section
    if missing := next((name for name in OF_A_SWEEP if name not in data), None):
        raise file.error("", f"the key {missing} is missing")
    return None


def _in_words(message: str) -> str:
    """msgspec's sentence with plain words for the types of JSON."""
    words = {
        "array": "a list",
        "object": "a mapping",
        "str": "text",
        "int": "a whole number",
        "float": "a number",
        "null": "nothing",
    }
    message = re.sub(
        r"`([\w| ]+)`", lambda types: " or ".join(words.get(name, name) for name in types[1].split(" | ")), message
    )
    return re.sub(r"matching regex '.*'", "of letters, digits, `_`, `-` and, but for the first, `.`", message)


def _choices(key: str) -> str:
    """The legal words of a key that takes one of a few; msgspec does not list them."""
    section, _, name = key.rpartition(".")
    struct = schema_of(section)
    legal = get_args(get_type_hints(struct).get(name)) if struct else ()
    return f"; valid are {', '.join(legal)}" if legal and all(isinstance(word, str) for word in legal) else ""


def parse_overrides(texts: list[str]) -> dict[str, Any]:
    """``KEY=VALUE`` with a YAML value. KEY is an axis, set in every grid, or a dotted path such as measure.seed."""
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {text}: expected KEY=VALUE, for example --set batch_size=[1,8]")
        try:
            overrides[key] = yaml.load(value, Loader=_Loader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two from dates and nesting
            raise ConfigError(f"--set {text}: the value is not YAML ({_yaml_problem(error)})") from None
    return overrides


def _read(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}{_nearest_file(Path(path))}") from None
    lines: dict[str, int | str] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        _note_lines(path, node, "", lines)
        data = loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two from dates and nesting
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else path
        hint = "; `bench.py report` reads records" if path.endswith(".jsonl") else ""
        raise ConfigError(f"{place}: not readable as YAML: {_yaml_problem(error)}{hint}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping with name, operators and sweep")
    return data, lines


def or_shipped(path: str) -> str:
    """The configuration that ``mtp3``, ``mtp3.yaml`` or ``configs/mtp3.yaml`` names in any folder: where no file has
    that path, the suite's own.
    """
    for file in CONFIGS.glob("*.yaml"):
        if path in (file.stem, file.name, f"configs/{file.name}") and not exists(path):
            return str(file)
    return path


def measuring(operator: str) -> list[str]:
    """The suite's own configurations that sweep an operator."""
    names = []
    for file in sorted(CONFIGS.glob("*.yaml")):
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
        names += [file.stem] if operator in data.get("operators", ()) else []
    return names


def _nearest_file(path: Path) -> str:
    """The nearest name beside a missing file, or in configs/ of this suite; nothing for what is there."""
    if path.exists():
        return ""
    files = {file.stem: file for folder in (CONFIGS, path.parent) for file in sorted(folder.glob("*.yaml"))}
    near = difflib.get_close_matches(path.stem, files, n=1)
    return (
        f"; did you mean {min(str(files[near[0]]), relpath(files[near[0]]), key=len)}?"
        if near
        else f"; configurations of this suite: {', '.join(sorted(file.stem for file in CONFIGS.glob('*.yaml')))}"
    )


def _yaml_problem(error: Exception) -> str:
    return getattr(error, "problem", None) or str(error).splitlines()[0]


def _note_lines(path: str, node: yaml.Node | None, key: str, lines: dict[str, int | str]) -> None:
    """Line numbers by key path. A key given twice is an error; YAML would let it pass."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            inner = f"{key}.{name.value}" if key else str(name.value)
            if inner in lines:
                raise ConfigError(
                    f"{path}:{name.start_mark.line + 1}: {inner}: given twice, first on line {lines[inner]}"
                )
            lines[inner] = name.start_mark.line + 1
            _note_lines(path, value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines[f"{key}[{i}]"] = value.start_mark.line + 1
            _note_lines(path, value, f"{key}[{i}]", lines)


def _override(path: str, data: dict[str, Any], lines: dict[str, int | str], key: str, value: Any) -> None:
    """Set a top-level or dotted key, or else an axis in every grid; errors at that key name ``--set`` from then on."""
    place = f"--set {key}"
    section, dot, name = key.partition(".")
    if dot and section not in top_keys():
        names = [f"{known}.{name}" for known in (*OWN_SECTIONS, *registry.ROOMS)]
        raise ConfigError(f"--set {key}: no section {section!r}{did_you_mean(key, names)}")
    targets: list[tuple[str, dict[str, Any]]]
    if section in top_keys():
        if dot:
            inner = data.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {key}: {section} is not a mapping in {path}")
            targets, key = [(f"{section}.", inner)], name
        else:
            targets = [("", data)]
    else:
        grids = data.get("sweep")
        if not isinstance(grids, list):
            raise ConfigError(f"--set {key}: {path} has no sweep to set an axis in")
        targets = [(f"sweep[{i}].", grid) for i, grid in enumerate(grids) if isinstance(grid, dict)]
    for prefix, target in targets:
        target[key] = value
        path_of_key = prefix + key
        replaced = [
            known for known in lines if known == path_of_key or known.startswith((path_of_key + ".", path_of_key + "["))
        ]
        for known in replaced:
            del lines[known]
        lines[path_of_key] = place
