"""Steps that all ranks of a group take, and that fail on all of them if they fail on one.

A rank that raises alone leaves its peers waiting in the next collective; here each learns of it instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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
    """Every rank's object, in the group's order; also a barrier."""
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, mine, group=group)
    return everyones
