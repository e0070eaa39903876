"""The servers whose throughput is compared, and how each is launched: they differ in CP's flags and the tree alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.arms import CPU_PLATFORM
from evals.server import ServerSpec

_INTERLEAVE = ("--enable-prefill-cp", "--cp-strategy", "interleave")
_SHARDED = (*_INTERLEAVE, "--cp-attn-weights", "sharded")
_CPU_ARGS = ("--device", "cpu", "--dtype", "float32")


@dataclass(frozen=True)
class ThroughputArm:
    """One server.

    Attributes:
        name: of the arm, and of its log file.
        cp_args: its CP flags; empty with CP off.
        unpatched: upstream's own tree in place of the patched one.
        takes_threshold: whether a fixed ``--cp-min-tokens`` is given to it.
    """

    name: str
    cp_args: tuple[str, ...] = ()
    unpatched: bool = False
    takes_threshold: bool = False

    def problem(self, info: Mapping[str, Any]) -> str | None:
        """Why a server is not this arm, one sentence. ``info``: its /server_info."""
        if self.unpatched == ("cp_attn_weights" in info):
            return f"{self.name} runs on {'a patched' if self.unpatched else 'an unpatched'} SGLang."
        if bool(self.cp_args) != bool(info["enable_prefill_cp"]):
            return f"{self.name} runs with CP {'off' if self.cp_args else 'on'}."
        return None

    def must_deal_out(self, info: Mapping[str, Any], input_tokens: int) -> bool:
        """Whether a prompt of that length must become a CP extend. ``info``: the server's /server_info.

        Under the threshold a batch of prompts may still reach it, and where the cost model decides anything may be
        right: False then.
        """
        if not self.cp_args:
            return False
        if self.unpatched or info["cp_attn_weights"] == "replicated":
            return True
        threshold = str(info["cp_min_tokens"])
        chunk = info["chunked_prefill_size"]
        longest = min(input_tokens, chunk) if chunk and chunk > 0 else input_tokens
        return threshold.isdecimal() and longest >= int(threshold)


UNPATCHED_OFF = ThroughputArm("unpatched-off", unpatched=True)
UNPATCHED_CP = ThroughputArm("unpatched-cp", _INTERLEAVE, unpatched=True)
OFF = ThroughputArm("off")
REPLICATED = ThroughputArm("replicated", (*_INTERLEAVE, "--cp-attn-weights", "replicated"))
SHARDED = ThroughputArm("sharded", _SHARDED, takes_threshold=True)
AUTO = ThroughputArm("auto", (*_SHARDED, "--cp-min-tokens", "auto"))

ARMS = {arm.name: arm for arm in (UNPATCHED_OFF, UNPATCHED_CP, OFF, REPLICATED, SHARDED, AUTO)}
"""By name, in the order in which they are measured."""


@dataclass(frozen=True)
class Launch:
    """What all arms of a run have in common.

    Attributes:
        model: directory of the checkpoint.
        tp_size: ranks.
        cpu: on the CPU reference platform.
        unpatched: directory that contains upstream's own package ``sglang``, for the unpatched arms.
        min_tokens: ``--cp-min-tokens`` of the arm with a fixed threshold; None for the server's default.
        server_args: more arguments of every server.
    """

    model: Path
    tp_size: int
    cpu: bool = False
    unpatched: Path | None = None
    min_tokens: int | None = None
    server_args: tuple[str, ...] = ()

    def spec(self, arm: ThroughputArm) -> ServerSpec:
        """How to launch ``arm``. The radix cache is off: random prompts must not serve each other's prefixes."""
        args = [*(_CPU_ARGS if self.cpu else ()), "--tp-size", str(self.tp_size), "--disable-radix-cache"]
        args += [*self.server_args, *arm.cp_args]
        if arm.takes_threshold and self.min_tokens is not None:
            args += ["--cp-min-tokens", str(self.min_tokens)]
        env = dict(CPU_PLATFORM) if self.cpu else {}
        if arm.unpatched:
            # Of this package the CPU platform alone may load there: its plugin refuses CP on an unpatched tree.
            env["SGLANG_PLUGINS"] = "cpu_reference"
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.unpatched), os.environ.get("PYTHONPATH")]))
        return ServerSpec(arm.name, self.model, args, env)
