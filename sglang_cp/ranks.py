"""Steps that all ranks of a group take, and that fail on all of them if they fail on one.

A rank that raises alone leaves its peers waiting in the next collective; here each learns of it instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

_T = TypeVar("_T")


class StepFailedError(RuntimeError):
    """A step failed on at least one rank; the message has the first one's reason."""


def together(group: dist.ProcessGroup, step: Callable[[], _T]) -> _T:
    """Run ``step`` on each rank, and return its result once it succeeded on every rank.

    Args:
        group: on a backend for CPU tensors; every rank of it makes this call.
        step: raises to fail.

    Raises:
        StepFailedError: on every rank, if the step raised on any.
    """
    failure: str | None = None
    try:
        result = step()
    except Exception as error:
        failure = str(error).partition("\n")[0] or type(error).__name__
    failures = exchange(group, failure)
    if any(failures):
        raise StepFailedError(next(found for found in failures if found))
    return result


def exchange(group: dist.ProcessGroup, mine: Any) -> list[Any]:
    """Every rank's object, in the group's order; also a barrier.

    The objects travel as JSON, so that nothing that arrives from the network is ever unpickled.

    Args:
        group: on a backend for CPU tensors.
        mine: what JSON can say: floats keep every bit, tuples arrive as lists.
    """
    text = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
    lengths = _all_gather(group, torch.tensor([len(text)]))
    padded = text.new_zeros(max(int(length) for length in lengths))
    padded[: len(text)] = text
    texts = _all_gather(group, padded)
    return [json.loads(other[: int(length)].numpy().tobytes()) for other, length in zip(texts, lengths, strict=True)]


def _all_gather(group: dist.ProcessGroup, mine: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's tensor of one shape."""
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyones, mine, group=group)
    return everyones
