"""What to do, in one sentence."""

from __future__ import annotations

from sglang_cp.cost.shape import chunks
from sglang_cp.cost.terms import Mode
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.prediction import effect, predict
from sglang_cp.planner.system import System, Workload

_ON = "--enable-prefill-cp --cp-strategy interleave --cp-min-tokens auto"


def advise(system: System, workload: Workload, noise: float) -> str:
    """The deployment advice for one workload.

    Args:
        system: what is planned with.
        workload: what it is to serve.
        noise: relative difference of throughput below which nothing is claimed.
    """
    extends = chunks(workload.input_tokens, system.prefill.chunk_tokens)
    ours = effect(system, Arm.AUTO, workload)
    theirs = ""
    if Arm.REPLICATED in system.arms:
        theirs = f"; SGLang's own CP is predicted to change it by {effect(system, Arm.REPLICATED, workload):+.0%}"
    if all(system.prefill.mode(Arm.AUTO, extend) is Mode.TP for extend in extends):
        return f"CP does not pay for these prompts: leave it off, or on auto, which serves them as plain TP{theirs}."
    sooner = predict(system, Arm.OFF, workload).ttft_s / predict(system, Arm.AUTO, workload).ttft_s
    if ours <= noise and sooner <= 1 + noise:
        return f"CP makes no difference beyond the noise of {noise:.0%} here: leave it off, or on auto{theirs}."
    figures = f"a first token {sooner:.1f}x sooner and {ours:+.0%} total throughput against CP off are predicted"
    if ours > noise:
        return f"Turn CP on with {_ON}: {figures}{theirs}."
    return (
        f"Turn CP on with {_ON} if the first token matters: {figures}, a throughput within the noise of "
        f"{noise:.0%}{theirs}."
    )
