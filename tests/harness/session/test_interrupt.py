"""Signals that interrupt a command."""

import signal

import pytest

from spec_decode_bench.harness.session import interrupt
from tests.processes import listening


def test_signals_in_quick_succession_interrupt_once(monkeypatch):
    """The second one would interrupt what ends the processes. A later one interrupts again."""
    monkeypatch.setattr(interrupt, "_last_s", float("-inf"))
    with listening(signal.SIGINT, signal.SIGTERM), interrupt.signals_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(interrupt, "AGAIN_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
