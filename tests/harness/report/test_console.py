"""What is shown while a command works."""

import time

import pytest

from spec_decode_bench.harness.report import console


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


def test_a_message_is_one_line_that_controls_no_terminal(capsys):
    console.print_to_stderr("error: a\nb\x1b[2J: unknown key")
    assert capsys.readouterr().err == "error: a\\nb\\x1b[2J: unknown key\n"
