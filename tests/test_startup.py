from types import SimpleNamespace

import pytest

from sglang_cp.startup import fixed_min_tokens


@pytest.mark.parametrize(
    ("given", "tokens"),
    [("2048", 2048), (1, 1), ("0", None), (0, None), ("-3", None), ("2.5", None), ("auto", None), ("", None)],
)
def test_a_threshold_is_a_whole_number_of_at_least_1(given, tokens):
    assert fixed_min_tokens(SimpleNamespace(cp_min_tokens=given)) == tokens
