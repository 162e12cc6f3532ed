"""Numbers and names in sentences."""

import json

import pytest

from spec_decode_bench.harness.wording import first_line, significant


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
