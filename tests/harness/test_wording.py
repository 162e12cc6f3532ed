"""Numbers and names in sentences."""

import json
import shutil
import sys

import pytest

from spec_decode_bench.harness.wording import first_line, program, signed, significant


@pytest.mark.parametrize(
    ("called", "arguments", "words"),
    [
        (["python", "bench.py", "list"], 2, ["python", "bench.py"]),
        (
            [".venv/bin/python", "-P", "../suite/bench.py", "list", "x"],
            3,
            [".venv/bin/python", "-P", "../suite/bench.py"],
        ),
        (["python", "-m", "pytest"], 1, ["python", "bench.py"]),
        (["python", "venv/bin/spec-decode-bench", "list"], 2, ["venv/bin/spec-decode-bench"]),
    ],
)
def test_the_program_is_named_as_it_was_called(called, arguments, words, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", called)
    monkeypatch.setattr(sys, "argv", called[-arguments:])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert program() == words


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 3, "0.00"),
        (0.0321, 3, "0.03"),
        (1.5, 3, "1.50"),
        (9.996, 3, "10.0"),
        (37.84, 3, "37.8"),
        (99.96, 3, "100"),
        (478.4, 3, "478"),
        (12345.6, 3, "12346"),
        (-1.234, 3, "-1.23"),
        (-99.96, 3, "-100"),
        (1.23456, 4, "1.235"),
        (float("nan"), 3, "nan"),
    ],
)
def test_significant_digits_without_an_exponent(value, digits, text):
    assert significant(value, digits) == text


def test_an_error_names_the_place_in_the_users_own_code(tmp_path):
    """The innermost one that is no library's: torch raises deep inside, the call stands in mine.py."""
    (tmp_path / "mine.py").write_text("import torch\n\n\ndef launch():\n    return torch.empty(2).view(3)\n")
    namespace = {}
    exec(compile((tmp_path / "mine.py").read_text(), str(tmp_path / "mine.py"), "exec"), namespace)
    with pytest.raises(RuntimeError) as caught:
        namespace["launch"]()
    assert first_line(caught.value).endswith("(mine.py, line 5)")
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert "(test_wording.py, line " in first_line(caught.value)
    assert first_line(ValueError("never raised")) == "ValueError: never raised"


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (15.26, ".1f", "+15.3"),
        (-2.0, ".2f", "−2.00"),
        (-0.01, "z.1f", "+0.0"),
        (-44.64, None, "−44.6"),
        (0, None, "+0.00"),
    ],
)
def test_a_difference_has_a_sign(value, form, text):
    assert signed(value, form) == text
