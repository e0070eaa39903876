"""The platform's settings, read from the environment in this one place."""

from __future__ import annotations

import enum
import os

PLATFORM_NAME = "cpu_reference"
_PLATFORM_VARIABLE = "SGLANG_PLATFORM"
_MODE_VARIABLE = "SGLANG_CP_CPU_MODE"
_MEMORY_VARIABLE = "SGLANG_CP_CPU_MEMORY_MIB"
_FORK_VARIABLE = "SGLANG_CP_CPU_FORK"


class Mode(enum.Enum):
    """How latents and index keys are stored.

    FAITHFUL: BF16 latents, FP8 index keys with one float32 scale a token, as upstream stores them on a GPU.
    EXACT: float32 latents and index keys, so that runs of different parallelism agree to float32 rounding.
    """

    FAITHFUL = "faithful"
    EXACT = "exact"

    @property
    def dtype(self) -> str:
        """The `--dtype` that belongs to the mode."""
        return "float32" if self is Mode.EXACT else "bfloat16"


class SettingsError(ValueError):
    """A setting that the platform cannot serve; the message names the way out."""


def is_selected() -> bool:
    """Whether this process was told to run on the CPU reference platform."""
    return os.environ.get(_PLATFORM_VARIABLE, "") == PLATFORM_NAME


def requested_mode() -> Mode | None:
    """The mode the environment asks for; None when it leaves the choice to `--dtype`.

    Raises SettingsError for an unknown name.
    """
    name = os.environ.get(_MODE_VARIABLE, "")
    if not name:
        return None
    try:
        return Mode(name)
    except ValueError:
        choices = " or ".join(mode.value for mode in Mode)
        raise SettingsError(
            f"{_MODE_VARIABLE}={name!r} is not a mode of the CPU reference platform: use {choices}, or unset it."
        ) from None


def resolve_mode(dtype: str) -> Mode:
    """The mode for a server started with `--dtype dtype` ("auto" leaves the choice to the environment).

    Raises SettingsError when the dtype has no mode, or contradicts the one the environment asks for.
    """
    requested = requested_mode()
    if dtype == "auto":
        return requested or Mode.FAITHFUL
    by_dtype = {"bfloat16": Mode.FAITHFUL, "float32": Mode.EXACT, "float": Mode.EXACT}.get(dtype)
    if by_dtype is None:
        raise SettingsError(
            f"The CPU reference platform has no mode for --dtype {dtype}: use bfloat16 (faithful) or float32 (exact)."
        )
    if requested is not None and requested is not by_dtype:
        raise SettingsError(
            f"{_MODE_VARIABLE}={requested.value} needs --dtype {requested.dtype}, but --dtype {dtype} was given: "
            "drop one of the two."
        )
    return by_dtype


def publish_mode(mode: Mode) -> None:
    """Hand the resolved mode to this process's kernels and to every rank it starts (they inherit it)."""
    os.environ[_MODE_VARIABLE] = mode.value


def mode() -> Mode:
    """The resolved mode, as the kernels see it."""
    return requested_mode() or Mode.FAITHFUL


def forks_ranks() -> bool:
    """Whether ranks are forked from the server process, for a faster start, not spawned as SGLang has it."""
    return os.environ.get(_FORK_VARIABLE, "") == "1"


def nominal_memory_bytes() -> int | None:
    """Memory that each rank's nominal device has; None leaves it to the host's.

    Raises SettingsError for what is not a positive whole number.
    """
    given = os.environ.get(_MEMORY_VARIABLE, "")
    if not given:
        return None
    if not given.isdecimal() or int(given) == 0:
        raise SettingsError(f"{_MEMORY_VARIABLE}={given!r} is not a positive number of MiB: give one, or unset it.")
    return int(given) << 20
