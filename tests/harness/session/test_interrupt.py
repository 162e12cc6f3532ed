"""Signals that interrupt a command."""

import signal
from contextlib import contextmanager

import pytest

from harness.session import interrupt


@contextmanager
def not_ignored(*numbers):
    """A shell has a command in the background ignore SIGINT, and such a signal stays ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signals_in_quick_succession_interrupt_once(monkeypatch):
    """The second one would interrupt what ends the processes. A later one interrupts again."""
    monkeypatch.setattr(interrupt, "_last_s", float("-inf"))
    with not_ignored(signal.SIGINT, signal.SIGTERM), interrupt.signals_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(interrupt, "AGAIN_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
