"""What can be asked of a server, and what is refused in a sentence."""

import pytest

from sglang_cp.calibration.requests import Lengths, Times, TimingRequest, parsed
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import UsageError

SHAPE = ExtendShape.of([5, 6], [0, 70])


def test_a_request_survives_json():
    request = TimingRequest(extends=[Lengths.of(SHAPE)], rounds=3)
    assert parsed(request.model_dump()) == request
    assert request.extends[0].to_shape() == SHAPE
    times = Times(tp=[0.1, 0.2], cp=[0.3, 0.4])
    assert Times.model_validate_json(times.model_dump_json()) == times


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (True, "the request: Input should be"),
        ({"extends": [], "rounds": 1}, "extends: List should have at least 1"),
        ({"extends": [{"extend_lens": [0], "prefix_lens": [0]}], "rounds": 1}, "greater than or equal to 1"),
        ({"extends": [{"extend_lens": [5], "prefix_lens": [-1]}], "rounds": 1}, "greater than or equal to 0"),
        ({"extends": [{"extend_lens": [5], "prefix_lens": []}], "rounds": 1}, "do not go with"),
        ({"extends": [{"extend_lens": [5.5], "prefix_lens": [0]}], "rounds": 1}, "valid integer"),
        ({"extends": [{"extend_lens": [5], "prefix_lens": [0]}], "rounds": 0}, "rounds"),
        ({"extends": [{"extend_lens": [5], "prefix_lens": [0]}], "rounds": 101}, "rounds"),
    ],
)
def test_anything_else_is_one_sentence(asked, named):
    with pytest.raises(UsageError) as refused:
        parsed(asked)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
