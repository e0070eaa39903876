"""The CP servers that streams are played against, and the reference: settings that short prompts meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from evals.arms import Arm, reference_spec
from evals.fuzz.generate import crowded, mixing, without_penalties
from evals.fuzz.streams import Stream
from evals.server import ServerSpec
from sglang_cp import agreement
from sglang_cp.tiny_checkpoint.config import TinyConfig

DTYPE = "float32"
"""The exact mode: arms agree unless something is wrong."""

_STRICT = {
    # The scheduler ends with a sentence when a page or a slot is lost, idle or busy, or freed twice.
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}
_AGREED = {agreement.VARIABLE: "1"}


def _as_it_is(stream: Stream) -> Stream:
    return stream


@dataclass(frozen=True)
class FuzzArm:
    """One CP server: an arm, and what no arm of the parity harness has.

    Attributes:
        played: from a generated stream to the one that this server is asked.
    """

    arm: Arm
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    played: Callable[[Stream], Stream] = _as_it_is

    @property
    def name(self) -> str:
        return self.arm.name

    def spec(self, model: Path) -> ServerSpec:
        spec = self.arm.spec(model, DTYPE)
        return replace(spec, args=(*spec.args, *self.args), env={**spec.env, **_STRICT, **self.env})


FUZZ_ARMS = (
    FuzzArm(Arm("tp2-sharded", 2, "sharded"), env=_AGREED),
    FuzzArm(
        Arm("tp4-sharded-mixed", 4, "sharded", shard_source="symmetric-memory", chunk=256, mixed=True), played=mixing
    ),
    FuzzArm(Arm("tp2-sharded-96", 2, "sharded", 96, "symmetric-memory", mixed=True), env=_AGREED),
    FuzzArm(Arm("tp2-replicated", 2, "replicated", chunk=64)),
    FuzzArm(Arm("tp4-sharded-256", 4, "sharded", min_tokens=256, shard_source="process-group", chunk=512)),
    # Requests are retracted: the pool holds the longest one, and little more.
    FuzzArm(
        Arm("tp2-sharded-pressure", 2, "sharded", 96, "symmetric-memory"),
        ("--max-total-tokens", "1344", "--schedule-conservativeness", "0.05"),
        played=crowded,
    ),
    FuzzArm(Arm("tp4-replicated", 4, "replicated", chunk=256)),
    # A penalty reaches the logits one step earlier than in the reference, whose scheduler overlaps.
    FuzzArm(
        Arm("tp2-sharded-no-overlap", 2, "sharded", min_tokens=33, chunk=64),
        ("--disable-overlap-schedule",),
        played=without_penalties,
    ),
)
"""In the order in which blocks of streams go to them."""

RETRACTING = frozenset(arm.name for arm in FUZZ_ARMS if arm.played is crowded)
"""Arms that show nothing if they retract no request."""


MODELS = {
    "glm": TinyConfig(),
    # As GLM-5.2: most layers reuse the top-k of the layer before.
    "glm-index-share": TinyConfig(index_share=True, indexer_rope_interleave=True),
    "deepseek-v32": TinyConfig(arch="deepseek-v32"),
}
"""Tiny checkpoints by name; generated lengths lie around their index_topk."""


def reference(model: Path) -> ServerSpec:
    """Plain SGLang at tp 1, CP off."""
    return reference_spec(model, DTYPE)
