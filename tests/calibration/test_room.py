"""What a server can hold, from its scheduler's numbers."""

from types import SimpleNamespace

import pytest

from sglang_cp.calibration.room import Room
from sglang_cp.cost.shape import ExtendShape

ROOM = Room(tp=2, chunk_tokens=512, context_tokens=1000, pool_tokens=1280, page_tokens=64, requests=3)


@pytest.mark.parametrize(
    ("extends", "prefixes", "held"),
    [
        ([512], [0], True),
        ([513], [0], False),
        ([256, 257], [0, 0], False),  # the chunk is the batch's, not a request's
        ([2], [998], True),
        ([3], [998], False),
        ([2], [0], True),
        ([1], [0], False),  # a row without a second rank to deal it to
        ([1, 1], [0, 0], True),
        ([64, 64, 64], [0, 0, 0], True),
        ([64, 64, 64, 64], [0, 0, 0, 0], False),
        ([64, 64], [576, 576], True),
        ([64, 1], [576, 576], True),
        ([64, 1], [577, 576], False),  # a page of the pool more, for one token
    ],
)
def test_chunk_context_ranks_requests_and_whole_pages_limit_an_extend(extends, prefixes, held):
    assert ROOM.holds(ExtendShape.of(extends, prefixes)) is held


def scheduler(**changes):
    fields = {
        "page_size": 64,
        "max_total_num_tokens": 4096,
        "chunked_prefill_size": 512,
        "max_running_requests": 8,
        "model_config": SimpleNamespace(context_len=1024),
        "tp_group": SimpleNamespace(world_size=4),
    }
    return SimpleNamespace(**{**fields, **changes})


def test_limits_are_the_schedulers_less_a_page_that_the_pool_keeps():
    assert Room.of(scheduler()) == Room(4, 512, 1024, 4032, 64, 8)
    assert Room.of(scheduler(chunked_prefill_size=None)).chunk_tokens == 1024
    small = Room.of(scheduler(max_total_num_tokens=640, chunked_prefill_size=None))
    assert (small.chunk_tokens, small.context_tokens, small.pool_tokens) == (576, 576, 576)
