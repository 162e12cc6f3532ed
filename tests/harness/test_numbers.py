"""Numbers in sentences."""

import pytest

from spec_decode_bench.harness.numbers import significant


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
