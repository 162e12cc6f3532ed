"""Parsers of axes that several operators share."""

import pytest
import yaml

from spec_decode_bench.baselines.workloads import axes


@pytest.mark.parametrize("text", ["on", "off", "'on'"])
def test_a_word_that_yaml_reads_as_a_truth_value_is_that_word(text):
    assert axes.choice("off", "on")(yaml.safe_load(text)) == text.strip("'")


def test_a_truth_value_is_no_other_word():
    with pytest.raises(ValueError, match="must be one of first, later"):
        axes.choice("first", "later")(True)
    with pytest.raises(ValueError, match="must be one of yes"):
        axes.choice("yes")(False)
