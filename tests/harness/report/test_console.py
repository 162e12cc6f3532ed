"""What is shown while a command works."""

import time

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


def test_a_message_is_one_line_that_controls_no_terminal(capsys):
    console.print_to_stderr("error: a\nb\x1b[2J: unknown key")
    assert capsys.readouterr().err == "error: a\\nb\\x1b[2J: unknown key\n"
