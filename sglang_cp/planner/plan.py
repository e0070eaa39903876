"""One plan: predictions of all arms, break-evens and advice for a workload, and what each figure rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from sglang_cp.cost.model import EXPOSED_PULLS
from sglang_cp.cost.shape import chunks
from sglang_cp.cost.terms import Mode
from sglang_cp.planner.advice import advise
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.break_even import break_even_tokens, power_law_tokens
from sglang_cp.planner.fitting import Residual, residuals
from sglang_cp.planner.prediction import Prediction, effect, predict
from sglang_cp.planner.published import PublishedSet, SweepPoint
from sglang_cp.planner.system import System, Workload

OUTPUT_TOKENS = (128, 512, 2048, 4096, 8192)
"""Output lengths whose break-even is given, besides the workload's own."""


@dataclass(frozen=True)
class BreakEvenRow:
    """Shortest prompts (tokens) from which SGLang's CP gives more throughput than CP off; None: not in the context."""

    output_tokens: int
    single_stream: int | None
    under_load: int | None
    published: int | None


@dataclass(frozen=True)
class Plan:
    """What ``sglang-cp plan`` says.

    Attributes:
        auto_break_even: shortest prompt (tokens) that auto deals out with a gain. It decodes as CP off does, so output
            length and concurrency do not move it.
        break_even: of SGLang's CP, by output length; empty where its decode is unknown.
        published: the measured point of this workload, if there is one.
        advice, basis: sentences.
    """

    source: str
    workload: Workload
    predictions: dict[Arm, Prediction]
    auto_break_even: int | None
    break_even: list[BreakEvenRow]
    published: SweepPoint | None
    advice: str
    basis: list[str]

    def as_json(self) -> dict[str, Any]:
        """For programs; units are in the names."""
        table = asdict(self)
        table["published"] = self.published.model_dump(mode="json") if self.published else None
        return table


def make_plan(
    system: System,
    workload: Workload,
    *,
    source: str,
    noise: float,
    basis: Sequence[str],
    published: PublishedSet | None = None,
) -> Plan:
    """Plan a workload. Raises UsageError if the system cannot serve it or knows too little to predict it."""
    system.check(workload)
    shown = {} if published is None else published.points(workload.input_tokens, workload.output_tokens)
    return Plan(
        source=source,
        workload=workload,
        predictions={arm: predict(system, arm, workload) for arm in system.arms},
        auto_break_even=break_even_tokens(system, Arm.AUTO, workload.output_tokens, 1),
        break_even=_break_evens(system, workload, published) if Arm.REPLICATED in system.arms else [],
        published=shown.get(workload.concurrency),
        advice=advise(system, workload, noise),
        basis=[*basis, *_pull_basis(system, workload)],
    )


def _break_evens(system: System, workload: Workload, published: PublishedSet | None) -> list[BreakEvenRow]:
    printed = {row.output_tokens: row.input_tokens for row in published.break_even} if published else {}
    lengths = sorted({*OUTPUT_TOKENS, workload.output_tokens})
    return [
        BreakEvenRow(
            tokens,
            break_even_tokens(system, Arm.REPLICATED, tokens, 1),
            break_even_tokens(system, Arm.REPLICATED, tokens, workload.concurrency),
            printed.get(tokens),
        )
        for tokens in lengths
        if tokens < system.context_tokens
    ]


def published_basis(published: PublishedSet, system: System, workload: Workload) -> list[str]:
    """What is measured, fitted and extrapolated in a plan from a published set, a sentence each."""
    rows = list(residuals(published, system))

    def errors(which: Callable[[Residual], bool]) -> str:
        found = [abs(row.error) for row in rows if which(row)]
        return f"{len(found)} (off by {mean(found):.1%} on average, {max(found):.1%} at most)"

    lines = [
        f"Measured: {published.hardware}. CP off and SGLang's CP"
        + (", and sharded." if _sharded_is_measured(published) else "; sharded and auto were not run there."),
        f"Fitted: first tokens at concurrency 1, {errors(lambda r: r.quantity == 'ttft')}; "
        f"times per output token there, {errors(lambda r: r.quantity == 'tpot' and r.fitted)}"
        + (
            f"; throughput at {published.fit.growth_input_tokens:,} input tokens under load, "
            f"{errors(lambda r: r.quantity == 'throughput' and r.fitted)}."
            if published.sweep
            else "."
        ),
    ]
    if published.sweep:
        unfitted = errors(lambda r: r.quantity == "throughput" and not r.fitted)
        lines.append(
            f"Predicted, not fitted: the other published throughputs under load, {unfitted}; and every first token "
            "under load: compare the published one above, where there is one."
        )
    if workload.concurrency > 1:
        lines.append("A time per output token includes the waits for other requests' prefills.")
    if not _sharded_is_measured(published):
        lines.append(
            "Extrapolated: sharded and auto, from their construction: decode as CP off, a CP extend as SGLang's CP "
            "plus what its shard pulls expose."
        )
    outside = list(_outside(published, workload))
    if outside:
        lines.append(f"Extrapolated: {', '.join(outside)}.")
    lines += _effect_basis(published, system)
    lines += _break_even_basis(published, system)
    lines.append(f"KV pool: {published.memory.pool_basis}; sharded: CP off's less two layers' gathered weights.")
    return lines


def _effect_basis(published: PublishedSet, system: System) -> list[str]:
    """Where the effect of SGLang's CP over a sweep, as published, and the model's part."""
    noise, points = published.noise, []
    for sweep in published.sweep:
        for concurrency, point in sorted(published.points(sweep.input_tokens, sweep.output_tokens).items()):
            mine = effect(system, Arm.REPLICATED, Workload(sweep.input_tokens, sweep.output_tokens, concurrency))
            points.append((f"{sweep.input_tokens:,} x {concurrency}", point.effect, mine))
    if not points:
        return []
    clear = [(theirs, mine) for _, theirs, mine in points if abs(theirs) > noise]
    agree = sum(theirs * mine > 0 for theirs, mine in clear)
    across = [
        f"{where} ({theirs:+.1%}, {mine:+.1%})"
        for where, theirs, mine in points
        if (abs(theirs) > noise) != (abs(mine) > noise)
    ]
    where, theirs, mine = max(points, key=lambda point: abs(point[2] - point[1]))
    return [
        f"Throughput of SGLang's CP over CP off: of {len(clear)} published points outside the noise of {noise:.0%} the "
        f"model gives {agree} the published sign. Only one of the two is outside it for these input tokens x "
        f"concurrency (published, model): {', '.join(across) or 'none'}. They are farthest apart at {where} "
        f"({theirs:+.1%}, {mine:+.1%})."
    ]


def _break_even_basis(published: PublishedSet, system: System) -> list[str]:
    """Where published break-evens and the model's part."""
    if not published.break_even:
        return []
    near, far = (row for row in published.single_stream if not row.sampled_lengths)
    parts = [
        f"{row.input_tokens:,} at {row.output_tokens:,} outputs, by that method "
        f"{power_law_tokens(near, far, row.output_tokens):,.0f}, by the model "
        f"{break_even_tokens(system, Arm.REPLICATED, row.output_tokens, 1):,}"
        for row in published.break_even
    ]
    return [
        "Published break-evens take the saving as a power of the prompt through two rows, and "
        f"{near.tpot_penalty_ms} ms a token: {'; '.join(parts)}. The model's saving has a term that is linear and one "
        f"that is quadratic in the prompt, and its penalty is {system.decode.replicated_seconds * 1e3:.3f} ms, fitted "
        f"to all {len(published.single_stream)} rows: the longer the prompt, the sooner it breaks even."
    ]


def _sharded_is_measured(published: PublishedSet) -> bool:
    return any(Arm.SHARDED in row.ttft_s for row in published.single_stream)


def _outside(published: PublishedSet, workload: Workload) -> list[str]:
    inputs = [row.input_tokens for row in (*published.single_stream, *published.sweep)]
    outputs = [row.output_tokens for row in (*published.single_stream, *published.sweep)]
    return [
        f"{value:,} {what} tokens are outside the measured {min(measured):,} to {max(measured):,}"
        for value, what, measured in (
            (workload.input_tokens, "input", inputs),
            (workload.output_tokens, "output", outputs),
        )
        if not min(measured) <= value <= max(measured)
    ]


def _pull_basis(system: System, workload: Workload) -> list[str]:
    model = system.prefill.model
    if not model.pull_seconds:
        return []
    dealt_out = [
        extend
        for extend in chunks(workload.input_tokens, system.prefill.chunk_tokens)
        if system.prefill.mode(Arm.AUTO, extend) is Mode.CP
    ]
    exposed = sum(model.breakdown(extend, Mode.CP)[EXPOSED_PULLS] for extend in dealt_out)
    return [
        f"Shard pulls: {model.pull_seconds * 1e3:.0f} ms an extend on their own, of which {exposed * 1e3:.0f} ms are "
        f"exposed in this prompt's {len(dealt_out)} CP extends."
    ]
