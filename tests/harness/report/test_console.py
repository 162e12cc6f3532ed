"""What is shown while a command works."""

import time

import pytest

from spec_decode_bench.harness.report import console


def test_a_log_gets_lines_of_progress_on_stderr(capsys, monkeypatch):
    monkeypatch.setattr(console, "FIRST_LINE_S", 0.0)
    monkeypatch.setattr(console, "LONGEST_PAUSE_S", 1000.0)
    with console.progress_bar(console.make_console(), 9) as update:
        update(3, "decode_native/\x1bchain")
        update(9, "")  # the end is told by the tables
    out, err = capsys.readouterr()
    assert out == ""
    assert "decode_native/\\x1bchain" in err


def test_the_first_seconds_are_silent(capsys, monkeypatch):
    monkeypatch.setattr(console, "FIRST_LINE_S", 10.0)
    with console.progress_bar(console.make_console(), 9) as update:
        update(3, "decode_native/chain")
    assert capsys.readouterr() == ("", "")


def test_a_command_says_what_it_does_only_where_that_takes_long(capsys, monkeypatch):
    monkeypatch.setattr(console, "FIRST_LINE_S", 0.01)
    with console.saying("planning"):
        time.sleep(0.2)
    assert capsys.readouterr().err == "planning …\n"
    monkeypatch.setattr(console, "FIRST_LINE_S", 10.0)
    with console.saying("planning"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("wall_s", "line"),
    [
        (None, "14 s: start 3.5, verify 10.3"),
        (15.0, "15 s: start 3.5, verify 10.3, other 1.2"),
        (8.0, "8 s: start 3.5, verify 10.3, some beside each other"),
    ],
)
def test_the_line_of_seconds_adds_up(wall_s, line, capsys):
    console.print_seconds(console.make_console(), {"start": 3.5, "verify": 10.3}, wall_s)
    assert capsys.readouterr().out.strip() == line
