"""From which prompt length on an arm gives more throughput than CP off."""

from __future__ import annotations

import math

from sglang_cp.cost.winning import holds_from
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.prediction import effect
from sglang_cp.planner.published import SingleStream
from sglang_cp.planner.system import System, Workload


def break_even_tokens(system: System, arm: Arm, output_tokens: int, concurrency: int) -> int | None:
    """The shortest prompt from which ``arm`` beats CP off, and so do all longer prompts that were tried.

    None if CP off still wins at the longest prompt that the context and the KV pools hold.
    """
    longest = min([system.context_tokens, *system.pool_tokens.values()]) - output_tokens

    def wins(tokens: int) -> bool:
        return effect(system, arm, Workload(tokens, output_tokens, concurrency)) > 0

    return holds_from(wins, longest)


def power_law_tokens(near: SingleStream, far: SingleStream, output_tokens: int) -> float:
    """Break-even of SGLang's CP at concurrency 1 as the post on MI355X has it.

    Its two figures, about 103,000 and 181,000 tokens, are those of a power law through the savings of its two long
    rows, against ``near``'s penalty a token. The post does not state it.
    """
    assert near.ttft_saving_ms is not None
    assert far.ttft_saving_ms is not None
    assert near.tpot_penalty_ms is not None
    exponent = math.log(far.ttft_saving_ms / near.ttft_saving_ms) / math.log(far.input_tokens / near.input_tokens)
    penalty = (output_tokens - 1) * near.tpot_penalty_ms
    return float(near.input_tokens * (penalty / near.ttft_saving_ms) ** (1 / exponent))
