"""All of a checkpoint or nothing; and a command that says what it did."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer import Typer
from typer.testing import CliRunner

from sglang_cp.errors import UsageError
from sglang_cp.tiny_checkpoint import TinyConfig, tokenizer, write_tiny_checkpoint
from sglang_cp.tiny_checkpoint.command import tiny_checkpoint
from sglang_cp.tiny_checkpoint.writer import FILES

SMALL = TinyConfig(layers=1, heads=2, experts=2)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_writes_the_files_that_it_says(tmp_path: Path) -> None:
    target = tmp_path / "new" / "tiny"
    summary = write_tiny_checkpoint(target, TinyConfig())
    assert sorted(path.name for path in target.iterdir()) == sorted(FILES)
    assert summary.size_bytes == sum(path.stat().st_size for path in target.iterdir()) < 10e6
    assert summary.parameters == sum(tensor.numel() for tensor in load_file(target / "model.safetensors").values())
    assert sorted(path.name for path in target.parent.iterdir()) == ["tiny"]


def test_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        write_tiny_checkpoint(tmp_path / "tiny", SMALL)
    finally:
        os.umask(previous)
    assert (tmp_path / "tiny").stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "tiny").iterdir()} == {0o640}


def test_same_config_same_bytes_and_another_seed_other_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_tiny_checkpoint(tmp_path / name, TinyConfig(layers=1, seed=seed))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    first, other = (load_file(tmp_path / name / "model.safetensors") for name in "ac")
    assert all(not first[name].equal(other[name]) for name in first)


def test_a_nextn_layer_follows_the_last_and_passes_the_embedding_on(tmp_path: Path) -> None:
    config = TinyConfig(layers=2, nextn=True)
    write_tiny_checkpoint(tmp_path / "tiny", config)
    tensors = load_file(tmp_path / "tiny" / "model.safetensors")
    nextn = {name.removeprefix("model.layers.2.") for name in tensors if name.startswith("model.layers.2.")}
    moe = {name.removeprefix("model.layers.1.") for name in tensors if name.startswith("model.layers.1.")}
    assert nextn - moe == {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"}
    assert moe <= nextn
    embedding, hidden = tensors["model.layers.2.eh_proj.weight"].float().split(config.hidden, dim=1)
    assert embedding.equal(embedding[0, 0] * torch.eye(config.hidden))
    assert 0 < hidden.std() * config.hidden**0.5 < embedding[0, 0] / 2


def test_a_tensor_does_not_depend_on_the_rest_of_the_checkpoint(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path / "a", TinyConfig(layers=2))
    write_tiny_checkpoint(
        tmp_path / "b", TinyConfig(layers=4, experts=16, index_heads=2, index_topk=7, index_share=True)
    )
    small, large = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    same = [name for name in small if name in large and small[name].shape == large[name].shape]
    assert len(same) > 40
    assert all(small[name].equal(large[name]) for name in same)


def test_an_occupied_directory_is_kept_without_force(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path / "tiny", SMALL)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"already holds a checkpoint; name another directory, or pass --force$"):
        write_tiny_checkpoint(tmp_path / "tiny", TinyConfig())
    assert contents(tmp_path) == before


def test_force_replaces_a_checkpoint(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path / "tiny", SMALL)
    write_tiny_checkpoint(tmp_path / "wanted", TinyConfig())
    write_tiny_checkpoint(tmp_path / "tiny", TinyConfig(), force=True)
    assert contents(tmp_path / "tiny") == contents(tmp_path / "wanted")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny", "wanted"]


@pytest.mark.parametrize("name", ["thesis.tex", ".git", "model-00001-of-00002.safetensors"])
def test_force_never_deletes_what_is_not_ours(tmp_path: Path, name: str) -> None:
    write_tiny_checkpoint(tmp_path / "tiny", SMALL)
    (tmp_path / "tiny" / name).write_text("precious")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="which no tiny checkpoint has"):
        write_tiny_checkpoint(tmp_path / "tiny", SMALL, force=True)
    assert contents(tmp_path) == before


def test_an_empty_directory_and_a_relative_path_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    write_tiny_checkpoint("tiny", SMALL)
    assert sorted(contents(tmp_path / "tiny")) == sorted(FILES)


def test_a_file_in_the_way_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"is a file|cannot write .* \(Not a directory|File exists"):
            write_tiny_checkpoint(target, SMALL, force=True)
    assert contents(tmp_path) == {"file": b"precious"}


def test_an_unwritable_place_is_one_sentence() -> None:
    # /proc refuses new directories even to root, who may write anywhere else.
    with pytest.raises(UsageError, match=r"^cannot write a checkpoint to /proc/tiny \(.+\); name another directory$"):
        write_tiny_checkpoint("/proc/tiny", SMALL)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_half_way_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """The tokenizer comes last: all else is on the disk by then."""
    write_tiny_checkpoint(tmp_path / "tiny", SMALL)
    before = contents(tmp_path)

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(tokenizer, "write_tokenizer", fail)
    expected = UsageError if isinstance(failure, OSError) else KeyboardInterrupt
    for target in ("tiny", "fresh"):
        with pytest.raises(expected):
            write_tiny_checkpoint(tmp_path / target, TinyConfig(), force=True)
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"]


def test_the_old_checkpoint_returns_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_checkpoint(tmp_path / "tiny", SMALL)
    before = contents(tmp_path)
    rename = Path.rename

    def fail_for_partial(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_partial)
    with pytest.raises(UsageError, match="Input/output error"):
        write_tiny_checkpoint(tmp_path / "tiny", TinyConfig(), force=True)
    assert contents(tmp_path) == before


@pytest.fixture
def app() -> Typer:
    app = Typer()
    app.command()(tiny_checkpoint)
    return app


def test_command_passes_its_options_on_and_says_what_it_made(app: Typer, tmp_path: Path) -> None:
    options = (
        "--layers 3 --heads 4 --index-topk 16 --index-heads 4 --experts 4 --hidden 64 --index-share --dtype float32"
    )
    result = CliRunner().invoke(app, [str(tmp_path / "made"), *options.split(), "--seed", "3"])
    assert result.exit_code == 0, result.output
    config = TinyConfig(
        layers=3, heads=4, index_topk=16, index_heads=4, experts=4, hidden=64, index_share=True, dtype="float32", seed=3
    )
    write_tiny_checkpoint(tmp_path / "wanted", config)
    assert contents(tmp_path / "made") == contents(tmp_path / "wanted")
    assert f"--model-path {tmp_path / 'made'}" in result.output
    assert "GlmMoeDsaForCausalLM, 3 layers, top-k 16" in result.output
    assert "1, 2, 4" in result.output


def test_command_chooses_sizes_for_a_format(app: Typer, tmp_path: Path) -> None:
    for name, options, config in (
        ("chosen", [], TinyConfig.stored_as("block-fp8", layers=1)),
        ("given", ["--q-lora-rank", "256"], TinyConfig.stored_as("block-fp8", layers=1, q_lora_rank=256)),
    ):
        command = [str(tmp_path / name), "--attn-quant", "block-fp8", "--layers", "1", *options]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        write_tiny_checkpoint(tmp_path / "wanted", config, force=True)
        assert contents(tmp_path / name) == contents(tmp_path / "wanted")


def test_command_refuses_before_it_writes(app: Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path / "made"), "--heads", "3"])
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "made").exists()
