"""Seconds per output token while nothing is prefilled, by arm."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_cp.planner.arms import Arm


@dataclass(frozen=True)
class Decode:
    """Time per output token as a function of the batch.

    A decode step reads the weights of the experts that its tokens are routed to, which saturates as the batch grows,
    and works on each request. Sharded CP decodes as CP off does; SGLang's CP computes all heads on every rank.

    Attributes:
        base_seconds: at batch 1 and no context.
        context_token_seconds: more, for each token of context.
        replicated_seconds: more, with replicated attention weights.
        experts_seconds: more, once all routed experts are read.
        request_seconds: more, for each request beyond the first.
        replicated_request_seconds: the same with replicated attention weights, on top.
        routed_share: experts a token is routed to, of all.
        tokens_per_step: tokens of a request in one step (with speculative decoding, those verified).
    """

    base_seconds: float
    context_token_seconds: float
    replicated_seconds: float
    experts_seconds: float = 0.0
    request_seconds: float = 0.0
    replicated_request_seconds: float = 0.0
    routed_share: float = 0.0
    tokens_per_step: int = 1

    def seconds_per_token(self, arm: Arm, batch: int, context_tokens: float) -> float:
        """Per output token of one of ``batch`` requests, each with this much context."""
        replicated = arm is Arm.REPLICATED
        seconds = self.base_seconds + self.context_token_seconds * context_tokens
        seconds += self.replicated_seconds * replicated
        seconds += self.experts_seconds * self.more_experts(batch)
        return seconds + (self.request_seconds + self.replicated_request_seconds * replicated) * (batch - 1)

    def more_experts(self, batch: int) -> float:
        """Share of the experts that a step of ``batch`` requests reads, less that of one request.

        Expected under uniform routing: an expert is missed by a token with probability 1 - routed_share.
        """
        missed = (1 - self.routed_share) ** self.tokens_per_step
        return float(missed - missed**batch)
