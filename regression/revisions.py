"""Checks out revisions of this suite into separate folders, so that two of them can be measured alternately.

A revision is a git worktree, detached, outside of the working tree. The working tree as it stands is its last commit
with the changed and the untracked files copied over it. Neither the working tree nor installed packages are touched.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from spec_decode_bench.harness import __version__
from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.discover import ROOT
from spec_decode_bench.harness.git import git
from spec_decode_bench.harness.printable import printable

#: What the command line of a revision must offer to be measured by another one.
NEEDED_FLAG = "--brief"
#: With these, a process can load while the one before it is timed, ends where a variant is wrong, and runs no edge case
#: again that the process which verified has run.
HOLD_FLAG, END_FLAG, TRUST_FLAG = "--hold", "--until-wrong", "--trust"
#: Seconds of a git command, or of the help of a revision's command line.
LIMIT_S = 120


@dataclass(frozen=True)
class Revision:
    """commit: full hash. name: as the user gave it, None for the working tree. changes: a hash of what the working tree
    has on top of the commit; None if it has nothing.
    """

    commit: str
    name: str | None = None
    changes: str | None = None

    def __str__(self) -> str:
        short = self.commit[:10]
        if self.name is None:
            return f"working tree ({short}{' with changes' if self.changes else ''})"
        return short if self.commit.startswith(self.name) else f"{self.name} ({short})"


def resolve(flag: str, name: str) -> Revision:
    """The commit that a name stands for. flag: for errors, such as "--base"."""
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if done.returncode == 0:
        return Revision(done.stdout.strip(), printable(name))
    _check_repository()
    if name.endswith(("+", "-dirty")):
        raise ConfigError(f"{flag} {name}: uncommitted changes have no revision; commit them first")
    raise ConfigError(f"{flag} {name}: no such commit in this clone; fetch it first (in CI, fetch the full history)")


def working_tree(without: Path) -> Revision:
    """The working tree as it stands, without what a gate writes into a folder of it."""
    _check_repository()
    commit = resolve("HEAD", "HEAD").commit
    digest = hashlib.sha256()
    changed = changed_files(without)
    for name in changed:
        path = _top() / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{name}\0{path.is_file()}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return Revision(commit, None, digest.hexdigest() if changed else None)


def as_it_stands(without: Path) -> Revision:
    """This suite, which both sides share: its working tree; where git does not have it, as installed, its version."""
    with suppress(ConfigError):
        if _git("ls-files", "--error-unmatch", "bench.py").returncode == 0:
            return working_tree(without)
    return Revision(__version__)


@contextmanager
def checked_out(revisions: dict[str, Revision], without: Path) -> Iterator[dict[str, Path]]:
    """Name -> folder of the suite at that revision; all of them are gone afterwards.

    without: folder of the working tree that is not copied.
    """
    folder = Path(tempfile.mkdtemp(prefix="bench-gate-"))
    try:
        suites = {}
        for name, revision in revisions.items():
            tree = folder / name
            done = _git("worktree", "add", "--detach", "--quiet", str(tree), revision.commit)
            if done.returncode:
                raise ConfigError(f"cannot check out {revision} into {tree}: {_last_line(done.stderr)}")
            if revision.changes:
                _copy_changes(tree, without)
            suites[name] = tree / _git("rev-parse", "--show-prefix").stdout.strip()
        yield suites
    finally:
        for name in revisions:
            _git("worktree", "remove", "--force", str(folder / name))
        shutil.rmtree(folder, ignore_errors=True)
        _git("worktree", "prune")


def flags_of(flag: str, revision: Revision, suite: Path) -> set[str]:
    """Those of NEEDED_FLAG, HOLD_FLAG, END_FLAG and TRUST_FLAG that the revision has. Raises ConfigError where it lacks
    the first.

    flag: for errors, such as "--base".
    """
    if not (suite / "bench.py").is_file():
        raise ConfigError(f"{flag}: {revision} has no bench.py; choose a later revision")
    command = [sys.executable, "bench.py", "run", "--help"]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode or NEEDED_FLAG not in done.stdout:
        raise ConfigError(
            f"{flag}: {revision} predates `gate`: its bench.py lacks {NEEDED_FLAG}; choose a later revision, or "
            "measure both sides yourself and compare the records"
        )
    return {name for name in (NEEDED_FLAG, HOLD_FLAG, END_FLAG, TRUST_FLAG) if name in done.stdout}


def _check_repository() -> None:
    done = _git("rev-parse", "--verify", "HEAD")
    if done.returncode:
        raise ConfigError(
            f"gate checks out revisions, but {ROOT} is not a usable git repository ({_last_line(done.stderr)}); "
            "clone the suite"
        )


def _top() -> Path:
    return Path(_git("rev-parse", "--show-toplevel").stdout.rstrip("\n"))


def changed_files(without: Path) -> list[str]:
    """Files that differ from the last commit, deleted ones too, and untracked ones that git does not ignore."""
    listings = (
        ("diff", "--name-only", "--no-renames", "-z", "HEAD"),
        ("ls-files", "--others", "--exclude-standard", "-z"),
    )
    top, without = _top(), without.resolve()
    names = {name for listing in listings for name in _git(*listing, where=top).stdout.split("\0") if name}
    return sorted(name for name in names if without not in (top / name).parents)


def _copy_changes(tree: Path, without: Path) -> None:
    top = _top()
    for name in changed_files(without):
        source, target = top / name, tree / name
        if source.is_file() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        elif not source.exists():
            target.unlink(missing_ok=True)


def _git(*arguments: str, where: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Raises ConfigError where git cannot be run."""
    try:
        return git(where or ROOT, *arguments, limit_s=LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"gate needs git, which failed to run: {error}") from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["git printed nothing"])[-1]
