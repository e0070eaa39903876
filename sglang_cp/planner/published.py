"""Published measurements, transcribed: the files under sets/ and what follows from their figures by arithmetic."""

from __future__ import annotations

from importlib import resources
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sglang_cp.compat import tomllib
from sglang_cp.errors import UsageError
from sglang_cp.planner.arms import Arm

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ByArm = dict[Arm, Positive]
_GIB = 2**30


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Record):
    """Geometry, by config.json's meaning; counts."""

    name: str
    layers: Count
    hidden: Count
    heads: Count
    index_topk: Count
    kv_lora_rank: Count
    q_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    routed_experts: Count
    experts_per_token: Count

    @property
    def layer_weight_bytes(self) -> int:
        """Attention weights that a CP extend gathers for a layer, all heads, BF16: q_b, w_kc, w_vc and o_proj."""
        a_head = (
            self.q_lora_rank * (self.qk_nope_head_dim + self.qk_rope_head_dim)
            + self.qk_nope_head_dim * self.kv_lora_rank
            + self.kv_lora_rank * self.v_head_dim
            + self.v_head_dim * self.hidden
        )
        return 2 * self.heads * a_head


class Memory(_Record):
    """Weights and KV pool; ``pool_basis`` says where the pool's figures come from."""

    weights_gib: ByArm
    pool_tokens: dict[Arm, Count]
    pool_basis: str

    @property
    def bytes_per_token(self) -> float:
        """KV bytes of a token on a rank: what the replicated weights take, over the tokens they cost."""
        weights = self.weights_gib[Arm.REPLICATED] - self.weights_gib[Arm.OFF]
        return weights * _GIB / (self.pool_tokens[Arm.OFF] - self.pool_tokens[Arm.REPLICATED])


class Pulls(_Record):
    """How fast a rank copies the weight shards that it lacks."""

    bytes_per_second: Positive


class FitSettings(_Record):
    """What is fitted to a set.

    Attributes:
        terms: of an extend, from ``sglang_cp.cost.terms``.
        request_costs: whether a request costs something beside its extends, with CP off and on.
        growth_input_tokens: the sweep that tells how a decode step grows with the batch, if one does.
        tokens_per_step: of a request in one decode step; with speculative decoding, those verified.
    """

    terms: list[str]
    request_costs: bool = False
    growth_input_tokens: Count | None = None
    tokens_per_step: Count = 1


class _Lengths(_Record):
    """Tokens of a request."""

    input_tokens: Count
    output_tokens: Count


class SingleStream(_Lengths):
    """One request at a time."""

    sampled_lengths: bool = False
    """Lengths are means of random ones: medians of the parts then do not add up."""
    ttft_s: ByArm
    tpot_ms: ByArm = {}
    e2e_s: ByArm = {}
    output_tok_s: ByArm = {}
    total_tok_s_per_gpu: ByArm = {}
    accept_length: ByArm = {}
    ttft_saving_ms: float | None = None
    tpot_penalty_ms: float | None = None
    decode_penalty_ms: float | None = None
    net_saving_ms: float | None = None

    def ttft_seconds(self, arm: Arm) -> float:
        """First token; where the saving was printed more finely than the two times, they are moved to differ by it."""
        seconds = self.ttft_s[arm]
        if self.ttft_saving_ms is None or arm not in (Arm.OFF, Arm.REPLICATED):
            return seconds
        excess = self.ttft_saving_ms / 1e3 - (self.ttft_s[Arm.OFF] - self.ttft_s[Arm.REPLICATED])
        return seconds + excess / 2 if arm is Arm.OFF else seconds - excess / 2

    def e2e_seconds(self, arm: Arm, tp: int) -> float:
        """End to end, from total throughput: nothing else runs, so a request takes its tokens over tokens a second."""
        return (self.input_tokens + self.output_tokens) / (tp * self.total_tok_s_per_gpu[arm])

    def point(self, tp: int) -> SweepPoint | None:
        """This row as the point of a sweep at concurrency 1, if both arms and fixed lengths make it one."""
        if self.sampled_lengths or not {Arm.OFF, Arm.REPLICATED} <= self.ttft_s.keys():
            return None
        throughput = self.total_tok_s_per_gpu or {
            arm: (self.input_tokens + self.output_tokens)
            / (tp * (self.ttft_s[arm] + (self.output_tokens - 1) * self.tpot_seconds(arm, tp)))
            for arm in self.ttft_s
        }
        return SweepPoint(concurrency=1, total_tok_s_per_gpu=throughput, ttft_s=self.ttft_s)

    def tpot_seconds(self, arm: Arm, tp: int) -> float:
        """Time per output token after the first, as printed, or else from E2E = TTFT + (n - 1) x TPOT."""
        if arm in self.tpot_ms:
            return self.tpot_ms[arm] / 1e3
        return (self.e2e_seconds(arm, tp) - self.ttft_seconds(arm)) / (self.output_tokens - 1)


class SweepPoint(_Record):
    """One concurrency of a sweep; medians."""

    concurrency: Count
    total_tok_s_per_gpu: ByArm
    ttft_s: ByArm = {}
    e2e_s: ByArm = {}
    interactivity_tok_s: ByArm = {}

    @property
    def effect(self) -> float:
        """Total throughput of SGLang's CP over CP off, less 1."""
        return self.total_tok_s_per_gpu[Arm.REPLICATED] / self.total_tok_s_per_gpu[Arm.OFF] - 1


class Sweep(_Lengths):
    """One prompt length under rising concurrency."""

    points: list[SweepPoint]


class BreakEven(_Lengths):
    """A published prompt length from which SGLang's CP pays at concurrency 1."""


class PublishedSet(_Record):
    """One file."""

    title: str
    source: str
    hardware: str
    tp: Annotated[int, Field(ge=2)]
    chunk_tokens: Count
    context_tokens: Count
    noise: Positive
    model: Model
    memory: Memory
    pulls: Pulls
    fit: FitSettings
    single_stream: list[SingleStream]
    sweep: list[Sweep] = []
    break_even: list[BreakEven] = []

    def points(self, input_tokens: int, output_tokens: int) -> dict[int, SweepPoint]:
        """What was published for these lengths, by concurrency; concurrency 1 from the single-stream rows."""
        found = {}
        for row in self.single_stream:
            point = row.point(self.tp)
            if point is not None and (row.input_tokens, row.output_tokens) == (input_tokens, output_tokens):
                found[1] = point
        for sweep in self.sweep:
            if (sweep.input_tokens, sweep.output_tokens) == (input_tokens, output_tokens):
                found |= {point.concurrency: point for point in sweep.points}
        return found


def set_names() -> list[str]:
    """The sets that come with the package."""
    folder = resources.files("sglang_cp.planner") / "sets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_set(name: str) -> PublishedSet:
    """Raises UsageError if there is no such set."""
    if name not in set_names():
        raise UsageError(f"There is no published set {name}: use one of {', '.join(set_names())}.")
    text = (resources.files("sglang_cp.planner") / "sets" / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return PublishedSet.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UsageError(f"The published set {name} is damaged ({error}): re-install sglang-cp.") from error
