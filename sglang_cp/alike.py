"""A start-up check that every rank of a server runs this package, with the same patches and the same CP flags.

Ranks that do not would wait for each other in different process groups, or decide differently about one extend. A rank
without the package says nothing at all, so each one's word goes through the store that brought the ranks together:
unlike a collective, it can be asked with a timeout.
"""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from typing import Any, Protocol

from sglang_cp.errors import UsageError

ANSWER_SECONDS = 60.0
"""The ranks have just met, and each says its word at once."""
FLAGS = (
    *("cp_strategy", "cp_attn_weights", "cp_shard_source", "cp_row_collectives", "cp_min_tokens"),
    "chunked_prefill_size",
)
"""What an extend's mode and collectives depend on, besides the scheduler's numbers."""


class Store(Protocol):
    """What is needed of torch's."""

    def set(self, key: str, value: str, /) -> None: ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...


def this_ranks_word(server_args: Any) -> str:
    """The package, its patches and the CP flags of this rank. ``server_args``: SGLang's, resolved."""
    from sglang_cp.patching import verify_applied

    digest = verify_applied()
    flags = [f"--{name.replace('_', '-')} {getattr(server_args, name)}" for name in FLAGS]
    return f"sglang-cp {version('sglang-cp')}, patches {digest[:12]}, {' '.join(flags)}"


def check_alike(store: Store, rank: int, size: int, word: str, seconds: float = ANSWER_SECONDS) -> None:
    """Compare this rank's word with every other's. All ranks make this call at the same point.

    Args:
        store: what the ranks met through.
        rank: of this process, among ``size``.
        word: what must be the same everywhere.
        seconds: to wait for each other rank.

    Raises:
        UsageError: on every rank that has the package, if one says something else or nothing.
    """
    store.set(_key(rank), word)
    for other in range(size):
        try:
            store.wait([_key(other)], timedelta(seconds=seconds))
            others = store.get(_key(other)).decode()
        except RuntimeError as error:
            raise UsageError(
                f"Rank {other} did not say within {seconds:.0f} s that it runs sglang-cp: install the package in the "
                "Python environment of every rank, run `sglang-cp patch apply` there, and use the same flags on all."
            ) from error
        if others != word:
            raise UsageError(
                f"The ranks run different code or flags: rank {other} has {others}; rank {rank} has {word}. "
                "Make them the same on every rank."
            )


def _key(rank: int) -> str:
    return f"sglang_cp/alike/{rank}"
