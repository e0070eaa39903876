"""What is planned with: a server's timing and memory, whether fitted to a published set or measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sglang_cp.cost.calibration import MOST_TOKENS
from sglang_cp.errors import UsageError
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.decode import Decode
from sglang_cp.planner.prefill import Prefill


@dataclass(frozen=True)
class Workload:
    """Equal requests, each client sending the next when the last is answered.

    Raises:
        UsageError: for a count below 1 or over MOST_TOKENS.
    """

    input_tokens: int
    output_tokens: int
    concurrency: int

    def __post_init__(self) -> None:
        for value, name, what in (
            (self.input_tokens, "input-len", "tokens"),
            (self.output_tokens, "output-len", "tokens"),
            (self.concurrency, "concurrency", "requests"),
        ):
            if not 1 <= value <= MOST_TOKENS:
                raise UsageError(f"--{name} is {value}: give a number of {what} from 1 to {MOST_TOKENS:,}.")

    @property
    def tokens(self) -> int:
        """Tokens of one request."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class System:
    """A server on its hardware.

    Attributes:
        tp: GPUs.
        context_tokens: most tokens of a request.
        max_concurrency: largest concurrency that ``decode`` is known for.
        prefill, decode: timing.
        pool_tokens: KV capacity by arm; arms that are missing have an unknown one.
        arms: those that can be predicted.
    """

    tp: int
    context_tokens: int
    max_concurrency: int | None
    prefill: Prefill
    decode: Decode
    pool_tokens: Mapping[Arm, int]
    arms: tuple[Arm, ...]

    def check(self, workload: Workload) -> None:
        """Raise UsageError if nothing can be said about a workload."""
        if workload.tokens > self.context_tokens:
            raise UsageError(
                f"{workload.input_tokens:,} input and {workload.output_tokens:,} output tokens are over the context of "
                f"{self.context_tokens:,} tokens: use shorter ones."
            )
        if self.max_concurrency is not None and workload.concurrency > self.max_concurrency:
            raise UsageError(
                f"Decode was measured up to concurrency {self.max_concurrency} only, and --concurrency is "
                f"{workload.concurrency}: use at most {self.max_concurrency}."
            )
        for arm, tokens in self.pool_tokens.items():
            if workload.tokens > tokens:
                raise UsageError(
                    f"A request of {workload.tokens:,} tokens does not fit the KV pool of {tokens:,} tokens "
                    f"({arm}): use shorter ones."
                )

    def running(self, arm: Arm, workload: Workload) -> int:
        """Requests that run at once; more than fit the KV pool wait."""
        if arm not in self.pool_tokens:
            return workload.concurrency
        return min(workload.concurrency, self.pool_tokens[arm] // workload.tokens)
