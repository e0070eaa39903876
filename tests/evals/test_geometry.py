"""A model directory of GLM-5.2's geometry: the widths of the real one, and a tokenizer that gives every id a text."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from evals import geometry

REAL = json.loads((Path(__file__).parents[1] / "doctor/configs/glm-5.2-mxfp4.json").read_text())
OTHER = {
    "vocab_size",
    "num_hidden_layers",
    "first_k_dense_replace",
    "n_routed_experts",
    "num_nextn_predict_layers",
    "max_position_embeddings",
    "quantization_config",
    "rope_interleave",
}
"""What need not be as in GLM-5.2: fewer layers and experts, and what speed does not depend on."""


def run(*arguments):
    app = typer.Typer()
    app.command()(geometry.main)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def test_every_width_is_that_of_glm_5_2():
    ours = geometry.config_json(8, 32, index_share=True)
    assert {name: ours.get(name) for name in REAL.keys() - OTHER} == {name: REAL[name] for name in REAL.keys() - OTHER}
    assert (ours["num_hidden_layers"], ours["n_routed_experts"]) == (8, 32)


def test_layers_index_as_sglang_reads_it():
    from sglang.srt.configs.model_config import dsa_layer_skips_topk
    from transformers import PretrainedConfig

    for share, indexing in ((False, list(range(8))), (True, [0, 1, 2, 6])):
        config = geometry.config_json(8, 32, index_share=share)
        loaded = PretrainedConfig.from_dict(config)
        assert [layer for layer in range(8) if not dsa_layer_skips_topk(loaded, layer)] == indexing
        assert [i for i, kind in enumerate(config["indexer_types"]) if kind == "full"] == indexing
    real = PretrainedConfig.from_dict(REAL | geometry.INDEX_SHARING)
    assert sum(not dsa_layer_skips_topk(real, layer) for layer in range(78)) == 21


def test_every_token_has_a_text_of_its_own(tmp_path):
    from transformers import AutoTokenizer

    assert run(tmp_path / "new/model")[0] == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new/model")
    config = json.loads((tmp_path / "new/model/config.json").read_text())
    assert tokenizer.vocab_size == config["vocab_size"]
    texts = tokenizer.batch_decode([[token] for token in range(config["vocab_size"])], skip_special_tokens=True)
    assert len({text.strip() for text in texts} - {""}) == config["vocab_size"]
    ids = [config["eos_token_id"], 7, 32767]
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text) == ids
    assert text.startswith(tokenizer.decode(ids[:2]))


def test_a_directory_can_be_made_anew(tmp_path):
    assert run(tmp_path / "model", "--layers", 4) == (
        0,
        f"{tmp_path}/model: GLM-5.2's geometry, 4 layers, 32 experts, no weights.",
    )
    assert run(tmp_path / "model", "--layers", 8, "--index-share")[0] == 0
    assert json.loads((tmp_path / "model/config.json").read_text())["num_hidden_layers"] == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--layers", "3", "--index-share"], "--index-share needs at least 4 --layers"),
        (["--layers", "0"], "Invalid value for '--layers'"),
        (["--experts", "7"], "Invalid value for '--experts'"),
    ],
)
def test_sizes_that_make_no_sense(tmp_path, arguments, sentence):
    code, said = run(tmp_path / "model", *arguments)
    assert (code, sentence in said) == (2, True), said
    assert not (tmp_path / "model").exists()


def test_a_directory_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, said = run(tmp_path)
    assert (code, "holds notes.txt" in said) == (2, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    code, said = run("/dev/null/model")
    assert (code, "cannot be written" in said) == (2, True), said
