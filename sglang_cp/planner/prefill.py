"""Seconds until a prompt's first token, by arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape, chunks
from sglang_cp.cost.terms import Mode
from sglang_cp.planner.arms import Arm, fixed_mode


@dataclass(frozen=True)
class Prefill:
    """What extends cost, and what a request costs outside of them.

    Attributes:
        model: of extends; its pulls are those of sharded weights.
        chunk_tokens: most new tokens of an extend.
        request_seconds: what a request costs once beside its extends (HTTP, tokenizer), on a server that is plain TP
            in itself (OFF) or SGLang's CP (REPLICATED); it delays no other request.
        sharded_row_seconds: what a row of a sharded CP extend costs beyond one of SGLang's CP, where it was measured.
    """

    model: CostModel
    chunk_tokens: int
    request_seconds: Mapping[Arm, float]
    sharded_row_seconds: float = 0.0

    def mode(self, arm: Arm, shape: ExtendShape) -> Mode:
        """How ``arm`` runs an extend."""
        if arm is not Arm.AUTO:
            return fixed_mode(arm, shape.rows)
        faster = self._sharded_cp_seconds(shape) < self.model.seconds(shape, Mode.TP)
        return Mode.CP if faster and shape.rows >= self.model.geometry.tp else Mode.TP

    def extend_seconds(self, arm: Arm, shape: ExtendShape) -> float:
        """One extend."""
        if arm is Arm.REPLICATED:
            return replace(self.model, pull_seconds=0.0).seconds(shape, Mode.CP)
        if self.mode(arm, shape) is Mode.CP:
            return self._sharded_cp_seconds(shape)
        return self.model.seconds(shape, Mode.TP)

    def prompt_seconds(self, arm: Arm, tokens: int) -> float:
        """The extends of one prompt, alone in each of them."""
        return sum(self.extend_seconds(arm, shape) for shape in chunks(tokens, self.chunk_tokens))

    def beside_extends_seconds(self, arm: Arm) -> float:
        """What a first token waits for beside its extends."""
        return self.request_seconds[arm if arm is Arm.REPLICATED else Arm.OFF]

    def _sharded_cp_seconds(self, shape: ExtendShape) -> float:
        return self.model.seconds(shape, Mode.CP) + self.sharded_row_seconds * shape.rows
