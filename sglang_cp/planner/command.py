"""The command ``sglang-cp plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sglang_cp.errors import UsageError

if TYPE_CHECKING:
    from sglang_cp.planner.plan import Plan
    from sglang_cp.planner.published import PublishedSet
    from sglang_cp.planner.system import System, Workload


_MOST_TPOT_MS = 3.6e6


def plan(
    input_len: Annotated[int, typer.Option(help="Prompt tokens of a request.")],
    output_len: Annotated[int, typer.Option(help="Output tokens of a request.")],
    concurrency: Annotated[int, typer.Option(help="Requests in flight.")] = 1,
    published: Annotated[
        str | None, typer.Option(help="Plan with a published set, such as glm-5.2-mxfp4-mi355x-tp4.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Plan with a file of `sglang-cp calibrate`; needs --tpot-ms.")
    ] = None,
    tp: Annotated[int | None, typer.Option(help="GPUs; must be what the set or calibration was made for.")] = None,
    tpot_ms: Annotated[
        float | None, typer.Option(help="Time per output token with CP off at this concurrency; with --calibration.")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="max_total_num_tokens of the server with CP off; with --calibration.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(help="--chunked-prefill-size; with --calibration, default 8192.")] = None,
    context: Annotated[int | None, typer.Option(help="--context-length; with --calibration, default 131072.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw it: a .png, .svg or .pdf file.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="JSON in place of tables.")] = False,
) -> None:
    """Predict first token, decode, throughput and KV pool with CP off, replicated, sharded and auto."""
    from sglang_cp.cost.calibration import MOST_TOKENS
    from sglang_cp.planner.plot import check_plot, write_plot
    from sglang_cp.planner.system import Workload

    if published is None and calibration is None:
        raise UsageError("Give one of --published and --calibration, so that there is something to plan with.")
    if published is not None and calibration is not None:
        raise UsageError("--published and --calibration are two things to plan with: leave one out.")
    workload = Workload(input_len, output_len, concurrency)
    if plot is not None:
        check_plot(plot)
    data: PublishedSet | None = None
    if published is not None:
        given = {"--tpot-ms": tpot_ms, "--kv-tokens": kv_tokens, "--chunk": chunk, "--context": context}
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} goes with --calibration: a published set has its own, leave it out.")
        data, system, made, noise = _from_set(published, tp, workload)
    else:
        assert calibration is not None
        if tpot_ms is None or not 0 < tpot_ms <= _MOST_TPOT_MS:
            raise UsageError(
                "--calibration times extends only: give --tpot-ms, a positive number of milliseconds, at most an hour."
            )
        for name, count in (("--kv-tokens", kv_tokens), ("--chunk", chunk), ("--context", context)):
            if count is not None and not 1 <= count <= MOST_TOKENS:
                raise UsageError(f"{name} is {count}: give a number of tokens from 1 to {MOST_TOKENS:,}.")
        system, made, noise = _from_calibration(
            calibration, tp, workload, tpot_ms / 1e3, kv_tokens, chunk or 8192, context or 131072
        )
    _show(made, json_output)
    if plot is not None:
        write_plot(plot, system, workload, title=made.source, noise=noise, published=data)


def _from_set(name: str, tp: int | None, workload: Workload) -> tuple[PublishedSet, System, Plan, float]:
    from sglang_cp.planner.fitting import system_from_set
    from sglang_cp.planner.plan import make_plan, published_basis
    from sglang_cp.planner.published import load_set

    data = load_set(name)
    _check_tp(tp, data.tp, f"The published set {name}")
    system = system_from_set(data)
    source = f"{data.source}: {data.title}"
    basis = published_basis(data, system, workload)
    made = make_plan(system, workload, source=source, noise=data.noise, basis=basis, published=data)
    return data, system, made, data.noise


def _from_calibration(
    path: Path, tp: int | None, workload: Workload, tpot_seconds: float, kv_tokens: int | None, chunk: int, context: int
) -> tuple[System, Plan, float]:
    from sglang_cp.cost.calibration import read_calibration
    from sglang_cp.planner.fitting import system_from_calibration
    from sglang_cp.planner.plan import make_plan

    file = read_calibration(path)
    _check_tp(tp, file.key.tp, f"The calibration {path}")
    system = system_from_calibration(
        file, chunk_tokens=chunk, context_tokens=context, tpot_seconds=tpot_seconds, pool_tokens=kv_tokens
    )
    fitted = file.to_fit()
    basis = [
        f"Measured: {len(fitted.measurements)} extends on {file.key.device}, met by the fit within {fitted.rms:.1%} "
        f"(root mean square), {fitted.worst:.1%} at most; time per output token as given.",
        "Unknown: what SGLang's own CP costs in decode, so it is left out; KV pool as given, without sharded CP's two "
        "layers' buffers.",
    ]
    made = make_plan(system, workload, source=f"Calibration {path}", noise=fitted.rms, basis=basis)
    return system, made, fitted.rms


def _check_tp(asked: int | None, made_for: int, what: str) -> None:
    if asked is not None and asked != made_for:
        other = f", or measure tp {asked}" if asked > 1 else ""
        raise UsageError(f"{what} was made for tp {made_for}, not {asked}: use --tp {made_for}{other}.")


def _show(made: Plan, as_json: bool) -> None:
    if as_json:
        import json

        typer.echo(json.dumps(made.as_json(), indent=1))
        return
    from rich.console import Console

    from sglang_cp.planner.report import print_plan

    print_plan(made, Console(soft_wrap=False, highlight=False))
