"""Numbers in sentences and tables."""

from __future__ import annotations

import math


def counted(number: int, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def significant(value: float, digits: int = 3) -> str:
    """``digits`` significant digits without an exponent: 1.50, 37.8, 478.

    Below 1 as many decimals as 1 has, so 0.0321 is 0.03; from 10**digits on all digits before the point.
    """
    _, _, exponent = f"{value:.{digits - 1}e}".partition("e")  # empty for NaN
    return f"{value:.{max(digits - 1 - max(int(exponent or 0), 0), 0)}f}"


def signed(value: float, form: str | None = None) -> str:
    """A difference with its sign, the minus as typeset: ``+15.3``, ``−2.00``. form: of a format, such as ``.1f``; None
    for three significant digits.
    """
    text = f"{value:+{form}}" if form else f"{'+' if value >= 0 else '-'}{significant(abs(value))}"
    return text.replace("-", "−")


def percent(ratio: float) -> str:
    """A ratio as a change in per cent: ``+15.3``."""
    return "no ratio" if math.isnan(ratio) else signed((ratio - 1) * 100, "z.1f")
