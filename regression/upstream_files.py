"""Takes the files of a package that variants require out of a checkout, one of its revisions, or a wheel, into a folder
that can be the first on Python's path. Neither the checkout nor installed packages are touched.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.dependencies import file_hash
from spec_decode_bench.harness.git import git
from spec_decode_bench.harness.packages import ORIGIN, Origin, checkout_of, code_in, required
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.schema import Checkout

#: Where packages lie in a checkout; a wheel, too, has them in its root.
_FOLDERS = ("", "python", "src")
#: Seconds of a git command.
_LIMIT_S = 300


class Side(msgspec.Struct, frozen=True):
    """The files of one side of a gate. spec: as the user gave it. files: name, as in ``requires=``, -> hash."""

    spec: str
    origin: Origin
    files: dict[str, str]

    def __str__(self) -> str:
        return str(self.origin.checkout or self.origin.version)


def take(flag: str, spec: str, checkout: Path | None, package: str, needs: Sequence[str], target: Path) -> Side:
    """The files of ``package`` that ``needs`` ask for, under ``target``/``package``, with their origin beside them.

    flag: for errors, such as "--base". spec: a revision of ``checkout``, a wheel, or a folder: a checkout or an
    unpacked wheel. needs: as in ``requires=``. Raises ConfigError.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    path = Path(spec)
    if checkout is not None and (commit := _commit(checkout, spec)) is not None:
        origin = _from_revision(checkout, commit, package, needs, target)
    elif path.suffix == ".whl" and path.is_file():
        origin = _from_wheel(path, package, needs, target)
    elif path.is_dir():
        origin = _from_folder(path, package, needs, target)
    else:
        of_checkout = f"no revision of {checkout}, and " if checkout is not None else ""
        raise ConfigError(
            f"{flag} {spec}: {of_checkout}no wheel and no folder; give one of them, or a revision of a "
            "checkout with --checkout PATH"
        )
    files = {f"{package}:{one.relative_to(target / package).as_posix()}": one for one in code_in(target / package)}
    if not files:
        raise ConfigError(f"{flag} {spec}: it holds no file of {package} that a variant requires")
    (target / package / "__init__.py").touch()  # else a package of that name later on the path is taken
    (target / ORIGIN).write_bytes(msgspec.json.format(msgspec.json.encode(origin)) + b"\n")
    return Side(printable(spec), origin, {name: file_hash(one) for name, one in sorted(files.items())})


def _from_folder(folder: Path, package: str, needs: Sequence[str], target: Path) -> Origin:
    """The files as they are now, and their checkout."""
    root = next((folder / one for one in _FOLDERS if (folder / one / package).is_dir()), folder)
    files = {f"{package}:{path.relative_to(root / package).as_posix()}": path for path in code_in(root / package)}
    files = {name: path for name, path in files.items() if any(required(need, name) for need in needs)}
    for path in files.values():
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    version = _version(root, package)
    return Origin(version, checkout_of(root / package, files, version is not None) if files else None)


def _version(root: Path, package: str) -> str | None:
    """Of the metadata beside a package."""
    names = {one.name.replace("-", "_"): one.version for one in importlib.metadata.distributions(path=[str(root)])}
    return names.get(package)


def _from_wheel(wheel: Path, package: str, needs: Sequence[str], target: Path) -> Origin:
    if "-" not in wheel.name:
        raise ConfigError(f"{wheel} has no version in its name; give it back the name it was released under")
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in _chosen(archive.namelist(), package, needs):
                archive.extract(name, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel} cannot be read as a wheel: {error}") from None
    return Origin(wheel.name.split("-")[1])


def _from_revision(checkout: Path, commit: str, package: str, needs: Sequence[str], target: Path) -> Origin:
    names = _git(checkout, "ls-tree", "-r", "--name-only", "-z", "--full-tree", commit).stdout.split("\0")
    root = next((one for one in _FOLDERS if any(name.startswith(f"{Path(one, package)}/") for name in names)), "")
    inside = [str(PurePosixPath(name).relative_to(root)) for name in names if PurePosixPath(name).is_relative_to(root)]
    if chosen := _chosen(inside, package, needs):
        top = Path(_git(checkout, "rev-parse", "--show-toplevel").stdout.rstrip("\n"))
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "files.tar")
            tree = f"{commit}:{root}" if root else commit
            done = _git(top, "archive", "--format=tar", f"--output={archive}", tree, "--", *chosen)
            if done.returncode:
                raise ConfigError(f"{checkout}: git cannot read {commit[:10]}: {done.stderr.strip()}")
            with tarfile.open(archive) as files:
                if hasattr(tarfile, "data_filter"):  # which Python 3.11.2, of Debian 12, lacks
                    files.extraction_filter = tarfile.data_filter
                files.extractall(target)
    date = _git(checkout, "log", "-1", "--format=%cI", commit).stdout.strip()
    return Origin(checkout=Checkout(commit, date))


def _chosen(names: Iterable[str], package: str, needs: Sequence[str]) -> list[str]:
    """Of paths that begin with the package's folder, those of files that the needs ask for."""
    prefix = f"{package}/"
    inside = [name for name in names if name.startswith(prefix) and not name.endswith(("/", ".pyc"))]
    return [name for name in inside if any(required(one, f"{package}:{name.removeprefix(prefix)}") for one in needs)]


def _commit(checkout: Path, spec: str) -> str | None:
    """Raises ConfigError where the checkout is none."""
    if _git(checkout, "rev-parse", "--git-dir").returncode:
        raise ConfigError(f"--checkout {checkout} is not a git repository")
    done = _git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{spec}^{{commit}}")
    return done.stdout.strip() if done.returncode == 0 else None


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return git(folder, *arguments, limit_s=_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"git failed to run in {folder}: {error}") from None
