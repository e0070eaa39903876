"""Everything the doctor found, for the screen and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_cp.doctor.estimate import Arm, Serving, estimate
from sglang_cp.doctor.launch import Launch, choose_source, problems, symmetric_memory_obstacle
from sglang_cp.doctor.machine import Fact, Machine, ask


@dataclass(frozen=True)
class Report:
    """The doctor's findings.

    Attributes:
        machine: its facts.
        launch: the flags that were examined.
        serving: what of them decides over memory; None without a model.
        source: where shards would come from, and why there.
        arms: the memory estimate by arm.
        problems: why the launch would fail; empty if nothing was found.
    """

    machine: Machine
    launch: Launch
    serving: Serving | None
    source: Fact[tuple[str, str]]
    arms: Fact[Mapping[str, Arm]]
    problems: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: sizes in bytes; a fact is {"value", "why_not"}."""
        data = dataclasses.asdict(self)
        for name, arm in (self.arms.value or {}).items():
            data["arms"]["value"][name] |= {"weight_bytes": arm.weight_bytes, "static_bytes": arm.static_bytes}
        return data


def make_report(
    machine: Machine,
    launch: Launch,
    config: Mapping[str, Any] | None,
    serving: Serving | None,
) -> Report:
    """Put a machine, a launch and a model's config.json (None: no model was named) together."""
    obstacle = symmetric_memory_obstacle(machine, launch.tp_size)
    arms: Fact[Mapping[str, Arm]] = Fact(None, "no model was named (--model-path)")
    if config is not None and serving is not None:
        arms = ask(lambda: estimate(config, serving))
    return Report(
        machine,
        launch,
        serving,
        ask(lambda: choose_source(launch.cp_shard_source, obstacle)),
        arms,
        problems(launch, machine, config, arms.value),
    )
