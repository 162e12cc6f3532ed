"""Which commit a record names."""

import subprocess

import pytest

from spec_decode_bench.harness.timing import environment


def git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", folder, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder with a bench.py in a repository whose only commit does not hold it."""
    monkeypatch.delenv("BENCH_COMMIT", raising=False)
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "bench.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "another project")
    monkeypatch.setattr(environment, "ROOT", folder)
    return folder


def test_a_tree_inside_another_repository_has_no_commit(tree):
    assert environment._git_state() == (None, False)


def test_a_tracked_tree_has_its_commit_and_says_when_it_differs(tree):
    git(tree, "add", "bench.py")
    git(tree, "commit", "-q", "-m", "suite")
    commit = git(tree, "rev-parse", "HEAD")[:10]
    assert environment._git_state() == (commit, False)
    (tree / "bench.py").write_text("1")
    assert environment._git_state() == (commit, True)


@pytest.mark.parametrize(("given", "state"), [("0123456789abc", ("0123456789", False)), ("01234+", ("01234", True))])
def test_bench_commit_wins_over_git(given, state, tree, monkeypatch):
    monkeypatch.setenv("BENCH_COMMIT", given)
    assert environment._git_state() == state
