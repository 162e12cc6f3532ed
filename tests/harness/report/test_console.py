"""What is shown while a command works."""

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
