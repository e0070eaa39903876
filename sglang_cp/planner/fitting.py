"""A published set, or a calibration measured here, to a system.

What a set of few rows can tell, in three fits of which each takes the one before as given (relative least squares,
nothing negative):

1. first tokens at concurrency 1: the set's terms of an extend, and what a request costs beside its extends, with CP
   off and on;
2. times per output token at concurrency 1: base, growth with the context, price of replicated weights;
3. one sweep's throughput under load: growth of a decode step with the batch. The other sweeps are not fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sglang_cp.cost.calibration import Calibration
from sglang_cp.cost.fit import nonnegative_fit
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import chunks
from sglang_cp.cost.terms import Geometry, Mode, units
from sglang_cp.planner.arms import Arm, fixed_mode
from sglang_cp.planner.decode import Decode
from sglang_cp.planner.prediction import predict
from sglang_cp.planner.prefill import Prefill
from sglang_cp.planner.published import PublishedSet
from sglang_cp.planner.system import System, Workload


@dataclass(frozen=True)
class Residual:
    """A published figure beside the system's own.

    Attributes:
        quantity: ``ttft``, ``tpot`` or ``throughput``.
        arm, workload: where it was measured.
        error: predicted over published, less 1.
        fitted: whether the system was fitted to it.
    """

    quantity: str
    arm: Arm
    workload: Workload
    error: float
    fitted: bool


def system_from_set(published: PublishedSet) -> System:
    """Fit a system to a published set."""
    prefill, decode = _fit_prefill(published), _fit_single_stream_decode(published)
    memory, model = published.memory, published.model
    pool = {arm: memory.pool_tokens[arm] for arm in (Arm.OFF, Arm.REPLICATED)}
    buffers = 2 * model.layer_weight_bytes
    pool[Arm.SHARDED] = pool[Arm.AUTO] = int(pool[Arm.OFF] - buffers / memory.bytes_per_token)
    concurrencies = [point.concurrency for sweep in published.sweep for point in sweep.points]
    system = System(
        tp=published.tp,
        context_tokens=published.context_tokens,
        max_concurrency=max(concurrencies, default=1),
        prefill=prefill,
        decode=decode,
        pool_tokens=pool,
        arms=tuple(Arm),
    )
    if published.fit.growth_input_tokens is None:
        return system
    return replace(system, decode=_fit_growth(published, system))


def system_from_calibration(
    calibration: Calibration, *, chunk_tokens: int, context_tokens: int, tpot_seconds: float, pool_tokens: int | None
) -> System:
    """A system whose extends were measured here.

    A calibration knows nothing of decode: ``tpot_seconds`` is that of CP off at the workload's concurrency, and what
    SGLang's CP would cost there stays unknown.
    """
    pool = {} if pool_tokens is None else dict.fromkeys((Arm.OFF, Arm.SHARDED, Arm.AUTO), pool_tokens)
    return System(
        tp=calibration.key.tp,
        context_tokens=context_tokens,
        max_concurrency=None,
        prefill=Prefill(calibration.to_fit().model, chunk_tokens, {Arm.OFF: 0.0}),
        decode=Decode(tpot_seconds, 0.0, 0.0),
        pool_tokens=pool,
        arms=(Arm.OFF, Arm.SHARDED, Arm.AUTO),
    )


def residuals(published: PublishedSet, system: System) -> Iterator[Residual]:
    """Every published first token at concurrency 1, time per token there, and throughput under load."""
    for row in published.single_stream:
        workload = Workload(row.input_tokens, row.output_tokens, 1)
        for arm in row.ttft_s:
            mine = predict(system, arm, workload)
            assert mine.tpot_s is not None
            yield Residual("ttft", arm, workload, mine.ttft_s / row.ttft_seconds(arm) - 1, True)
            tpot = row.tpot_seconds(arm, published.tp)
            yield Residual("tpot", arm, workload, mine.tpot_s / tpot - 1, arm is not Arm.SHARDED)
    for sweep in published.sweep:
        fitted = sweep.input_tokens == published.fit.growth_input_tokens
        for point in sweep.points:
            workload = Workload(sweep.input_tokens, sweep.output_tokens, point.concurrency)
            for arm, throughput in point.total_tok_s_per_gpu.items():
                error = predict(system, arm, workload).total_tok_s_per_gpu / throughput - 1
                yield Residual("throughput", arm, workload, error, fitted)


def _fit_prefill(published: PublishedSet) -> Prefill:
    geometry = Geometry(published.tp, published.model.index_topk)
    terms = published.fit.terms
    costs = float(published.fit.request_costs)
    design, seconds = [], []
    for row in published.single_stream:
        for arm in row.ttft_s:
            extends = [(e, fixed_mode(arm, e.rows)) for e in chunks(row.input_tokens, published.chunk_tokens)]
            dealt_out = sum(e.rows for e, mode in extends if arm is Arm.SHARDED and mode is Mode.CP)
            design.append(
                [sum(units(term, e, geometry, mode) for e, mode in extends) for term in terms]
                + [dealt_out, costs * (arm is not Arm.REPLICATED), costs * (arm is Arm.REPLICATED)]
            )
            seconds.append(row.ttft_seconds(arm))
    *coefficients, sharded_row, off, replicated = nonnegative_fit(np.array(design), np.array(seconds))
    missing = published.model.layers * published.model.layer_weight_bytes * (published.tp - 1) / published.tp
    model = CostModel(geometry, dict(zip(terms, coefficients, strict=True)), missing / published.pulls.bytes_per_second)
    return Prefill(model, published.chunk_tokens, {Arm.OFF: off, Arm.REPLICATED: replicated}, sharded_row)


def _fit_single_stream_decode(published: PublishedSet) -> Decode:
    design, seconds = [], []
    for row in published.single_stream:
        for arm in row.ttft_s:
            if arm is not Arm.SHARDED:
                design.append([1.0, row.input_tokens + row.output_tokens / 2, float(arm is Arm.REPLICATED)])
                seconds.append(row.tpot_seconds(arm, published.tp))
    model = published.model
    base, context, replicated = nonnegative_fit(np.array(design), np.array(seconds))
    return Decode(
        base,
        context,
        replicated,
        routed_share=model.experts_per_token / model.routed_experts,
        tokens_per_step=published.fit.tokens_per_step,
    )


def _fit_growth(published: PublishedSet, system: System) -> Decode:
    design, seconds, known = [], [], []
    for sweep in published.sweep:
        if sweep.input_tokens != published.fit.growth_input_tokens:
            continue
        for point in sweep.points:
            workload = Workload(sweep.input_tokens, sweep.output_tokens, point.concurrency)
            steps, more = sweep.output_tokens - 1, point.concurrency - 1
            for arm, throughput in point.total_tok_s_per_gpu.items():
                experts = system.decode.more_experts(point.concurrency)
                design.append([steps * experts, steps * more, steps * more * (arm is Arm.REPLICATED)])
                seconds.append(point.concurrency * workload.tokens / (throughput * published.tp))
                known.append(predict(system, arm, workload).e2e_s)
    experts, request, replicated = nonnegative_fit(np.array(design), np.array(seconds), np.array(known))
    return replace(
        system.decode, experts_seconds=experts, request_seconds=request, replicated_request_seconds=replicated
    )
