"""What a workload sees on a system, by arm."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_cp.planner.arms import Arm
from sglang_cp.planner.system import System, Workload


@dataclass(frozen=True)
class Prediction:
    """Figures of one arm.

    Attributes:
        ttft_s: median time to first token.
        tpot_s: time per output token after it, the prefills of other requests included; None for one output token.
        e2e_s: time of a request, ttft_s + (n - 1) x tpot_s.
        total_tok_s_per_gpu: input and output tokens a second, per GPU.
        pool_tokens: KV capacity; None if unknown.
        running: requests that run at once.
    """

    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    total_tok_s_per_gpu: float
    pool_tokens: int | None
    running: int


def predict(system: System, arm: Arm, workload: Workload) -> Prediction:
    """A closed loop in its steady state.

    All clients' prompts are prefilled one after the other, then decoded as one batch: a round takes
    request + c x prompt + (n - 1) x step(c). At concurrency 1 this is E2E = TTFT + (n - 1) x TPOT. Half of the running
    prompts are prefilled before the median one. With more clients than fit the KV pool, a round takes as many decode
    phases as batches fit, and the others wait (Little's law).
    """
    clients, running = workload.concurrency, system.running(arm, workload)
    request = system.prefill.beside_extends_seconds(arm)
    prompt = system.prefill.prompt_seconds(arm, workload.input_tokens)
    step = system.decode.seconds_per_token(arm, running, workload.input_tokens + workload.output_tokens / 2)
    steps = workload.output_tokens - 1
    e2e = request + clients * prompt + steps * step * clients / running
    ttft, tpot = e2e, None
    if steps:
        ttft = e2e * (1 - running / clients) + request + (running + 1) / 2 * prompt
        tpot = (e2e - ttft) / steps
    return Prediction(
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        total_tok_s_per_gpu=clients * workload.tokens / (e2e * system.tp),
        pool_tokens=system.pool_tokens.get(arm),
        running=running,
    )


def effect(system: System, arm: Arm, workload: Workload) -> float:
    """Total throughput of ``arm`` over CP off, less 1."""
    throughput = {a: predict(system, a, workload).total_tok_s_per_gpu for a in (arm, Arm.OFF)}
    return throughput[arm] / throughput[Arm.OFF] - 1
