"""Writes a tiny checkpoint: all of it, or nothing."""

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_cp.errors import UsageError
from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.vocabulary import BOS_ID, EOS_ID, PAD_ID

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


@dataclass(frozen=True)
class Summary:
    """What was written: the number of parameters, and the size of all files in bytes."""

    parameters: int
    size_bytes: int


def write_tiny_checkpoint(directory: str | Path, config: TinyConfig, *, force: bool = False) -> Summary:
    """Writes a checkpoint that transformers and SGLang load, and says how large it is.

    The files are made in a hidden sibling directory that is renamed when complete, so `directory` is never half
    a checkpoint, and on any failure it is as it was.

    Args:
        directory: where to write; its parents are created. An empty directory may exist.
        config: the sizes.
        force: replace an existing tiny checkpoint. A directory with any other file in it is never replaced.

    Raises:
        UsageError: `directory` is in use or cannot be written, or torch is not installed.
    """
    target = Path(directory).expanduser().resolve()
    try:
        _require_free(target, force)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Made by hand, as the umask then gives the permissions that a user expects; tempfile's are private.
        partial = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex}")
        partial.mkdir()
        try:
            summary = _write_files(partial, config)
            _replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write a checkpoint to {target} ({reason}); name another directory") from error
    return summary


def _require_free(target: Path, force: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{target} is a file; name a directory for the checkpoint")
    present = sorted(path.name for path in target.iterdir())
    foreign = [name for name in present if name not in FILES]
    if foreign:
        raise UsageError(f"{target} holds {foreign[0]}, which no tiny checkpoint has; name another directory")
    if present and not force:
        raise UsageError(f"{target} already holds a checkpoint; name another directory, or pass --force")


def _write_files(directory: Path, config: TinyConfig) -> Summary:
    # Imported late: torch takes seconds, which a refusal should not, and comes with SGLang, not with us.
    try:
        from safetensors.torch import save

        from sglang_cp.tiny_checkpoint.quantize import stored
        from sglang_cp.tiny_checkpoint.tokenizer import write_tokenizer
        from sglang_cp.tiny_checkpoint.weights import draw, tensor_specs
    except ModuleNotFoundError as error:
        raise UsageError(
            f"a tiny checkpoint needs {error.name}, which comes with SGLang; pip install 'sglang-cp[sglang]'"
        ) from error

    weights = {spec.name: draw(spec, config) for spec in tensor_specs(config)}
    tensors = {}
    for name, weight in weights.items():
        tensors.update(stored(name, weight, config))
    # Not save_file, which makes a file that only its owner can read.
    (directory / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    _write_json(directory / "config.json", config.to_config_json())
    token_ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    _write_json(directory / "generation_config.json", token_ids)
    write_tokenizer(directory, config.max_positions)
    return Summary(
        parameters=sum(weight.numel() for weight in weights.values()),
        size_bytes=sum(path.stat().st_size for path in directory.iterdir()),
    )


def _write_json(path: Path, contents: Mapping[str, object]) -> None:
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _replace(partial: Path, target: Path) -> None:
    """Renames `partial` to `target`; what was there is kept aside until the new one is in place."""
    if not target.exists():
        partial.rename(target)
        return
    aside = partial.with_name(partial.name.replace(".partial-", ".old-"))
    target.rename(aside)
    try:
        partial.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside)
