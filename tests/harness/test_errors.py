"""Errors in one line."""

import json

import pytest

from spec_decode_bench.harness.errors import first_line


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
    assert "(test_errors.py, line " in first_line(caught.value)
    assert first_line(ValueError("never raised")) == "ValueError: never raised"
