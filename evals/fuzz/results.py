"""What a run leaves behind: its settings, a line for each stream played, a file for each failure."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from evals.fuzz.arms import RETRACTING
from evals.fuzz.streams import Stream
from sglang_cp.errors import UsageError, first_problem


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Settings(_Value):
    """What must be the same when a run goes on. ``model``: a name or a directory."""

    seed: int
    model: str
    tolerance: float
    versions: dict[str, str]


class Played(_Value):
    """One stream against one arm; counts of requests, tokens, logprobs, retractions, extends and rows, and nats and
    seconds."""

    index: int
    arm: str
    requests: int
    aborted: int
    tokens: int
    logprobs: int
    max_gap: float
    retractions: int
    cp_extends: int
    cp_rows: int
    cp_rows_over_topk: int
    seconds: float
    failed: bool


class Replay(_Value):
    """A stream worth playing again.

    Attributes:
        why: what it is about, or what went wrong.
        arm: the server it went wrong with.
        seed, index: the generated stream it was shrunk from; None where a person wrote it.
        found: what was wrong, each one sentence.
        versions: of what was run.
    """

    why: str
    arm: str
    stream: Stream
    seed: int | None = None
    index: int | None = None
    found: tuple[str, ...] = ()
    versions: dict[str, str] = {}

    @classmethod
    def read(cls, path: Path) -> Replay:
        """Raises UsageError for a file that is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
        except ValidationError as error:
            raise UsageError(f"{path} is not a replay of evals.fuzz: {first_problem(error, 'the whole')}.") from error

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1, exclude_defaults=True) + "\n")


class Folder:
    """A run's directory: ``settings.json``, ``played.jsonl``, ``failures/``. Every line is written at once.

    Raises:
        UsageError: when a run with other settings is there.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        file = path / "settings.json"
        if file.exists():
            there = read_settings(path)
            for name in Settings.model_fields:
                if getattr(there, name) != getattr(settings, name):
                    raise UsageError(
                        f"{path} holds a run with {name} {getattr(there, name)}, not {getattr(settings, name)}: "
                        "go on with that, or give another --output."
                    )
        (path / "failures").mkdir(parents=True, exist_ok=True)
        (path / "logs").mkdir(exist_ok=True)
        file.write_text(settings.model_dump_json(indent=1) + "\n")
        _drop_cut_off(path / "played.jsonl")
        self.done = {(line.index, line.arm) for line in read_played(path)}

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def add(self, played: Played) -> None:
        with (self.path / "played.jsonl").open("a") as file:
            file.write(played.model_dump_json() + "\n")
        self.done.add((played.index, played.arm))

    def add_failure(self, replay: Replay) -> Path:
        path = self.path / "failures" / f"{replay.arm}-{replay.index}.json"
        replay.write(path)
        return path


def read_settings(path: Path) -> Settings:
    """Raises UsageError where no run is."""
    try:
        return Settings.model_validate_json((path / "settings.json").read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(f"{path} holds no run of evals.fuzz (settings.json).") from error


def read_played(path: Path) -> list[Played]:
    """The lines of a run, without a last one that was cut off when it was killed. UsageError for what is no line."""
    file = path / "played.jsonl"
    played = []
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            played.append(Played.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(f"{file}, line {number}, is not of this program: remove it.") from error
    return played


def _drop_cut_off(file: Path) -> None:
    if file.exists():
        written = file.read_bytes()
        file.write_bytes(written[: written.rfind(b"\n") + 1])


def totals(played: Iterable[Played]) -> dict[str, Played]:
    """By arm, the sums; ``index`` counts the streams."""
    by_arm: defaultdict[str, list[Played]] = defaultdict(list)
    for line in played:
        by_arm[line.arm].append(line)
    sums = Played.model_fields.keys() - {"index", "arm", "max_gap", "failed"}
    return {
        arm: Played(
            index=len(lines),
            arm=arm,
            max_gap=max(line.max_gap for line in lines),
            failed=any(line.failed for line in lines),
            **{name: sum(getattr(line, name) for line in lines) for name in sums},
        )
        for arm, lines in by_arm.items()
    }


def unproved(played: Sequence[Played], least_streams: int = 10) -> list[str]:
    """Arms whose streams do not speak for CP: each one sentence."""
    return [
        f"{arm}: {what} in {total.index} streams."
        for arm, total in totals(played).items()
        if total.index >= least_streams
        for what, count in (
            ("no extend was dealt out", total.cp_extends),
            ("top-k dropped no key of an extend that was dealt out", total.cp_rows_over_topk),
            ("no request was retracted", total.retractions or arm not in RETRACTING),
        )
        if not count
    ]


def versions() -> dict[str, str]:
    """Of what is run."""
    found = {"python": platform.python_version()}
    for name in ("sglang", "sglang-cp", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
