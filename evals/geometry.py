"""GLM-5.2's geometry with fewer layers and experts, to measure speed: ``python -m evals.geometry DIRECTORY``.

Writes config.json and a tokenizer, no weights: serve with ``--load-format dummy``. A token is a word, and every id of
the vocabulary has one: random weights generate any id, and SGLang's benchmark takes the first text for the first token.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from evals.accuracy import one_sentence
from sglang_cp.errors import UsageError
from sglang_cp.tiny_checkpoint.config import TinyConfig

VOCAB_SIZE = 32768
"""GLM-5.2 has 154,880: its LM head would weigh more among few layers than among 78."""
GLM_5_2 = TinyConfig(
    hidden=6144,
    heads=64,
    q_lora_rank=2048,
    qk_nope_head_dim=192,
    v_head_dim=256,
    dense_intermediate=12288,
    experts_per_token=8,
    expert_intermediate=2048,
    index_topk=2048,
    index_heads=32,
    indexer_rope_interleave=True,
    max_positions=202752,
)
INDEX_SHARING = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
"""GLM-5.2 indexes in the layers 0, 1, 2 and then in every fourth, 21 of its 78; SGLang reads it from these."""


def config_json(layers: int, experts: int, *, index_share: bool) -> dict[str, Any]:
    """The contents of config.json. Raises UsageError for sizes that no server could serve."""
    config = replace(GLM_5_2, layers=layers, experts=experts).to_config_json()
    config |= {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    if index_share:
        frequency, offset = INDEX_SHARING.values()
        shared = [max(layer - offset + 1, 0) % frequency != 0 for layer in range(layers)]
        if not any(shared):
            raise UsageError(f"--index-share needs at least {offset + 1} --layers: the first {offset} share nothing.")
        config |= INDEX_SHARING
        config["indexer_types"] = ["shared" if reuses else "full" for reuses in shared]
    return config


def tokenizer_json() -> str:
    """A tokenizer of words ``t0`` to ``t32767``, whose ids they name."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"t{index}": index for index in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    text: str = tokenizer.to_str()
    return text


def main(
    directory: Annotated[Path, typer.Argument(help="Where the model goes; made if need be.")],
    layers: Annotated[int, typer.Option(help="Layers; the first has a dense FFN.", min=1)] = 6,
    experts: Annotated[int, typer.Option(help="Routed experts of a layer, of which a token takes 8.", min=8)] = 32,
    index_share: Annotated[
        bool, typer.Option("--index-share", help="Index in the layers 0, 1, 2 and every fourth, as GLM-5.2 does.")
    ] = False,
) -> None:
    """Write a model directory; exit code 2 for unusable input."""
    console = Console()
    with one_sentence(console):
        config = config_json(layers, experts, index_share=index_share)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        # The one that makes the directory a model comes last.
        files = {
            "tokenizer.json": tokenizer_json(),
            "tokenizer_config.json": json.dumps(settings, indent=2),
            "config.json": json.dumps(config, indent=2),
        }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            foreign = sorted(path.name for path in directory.iterdir() if path.name not in files)
            if foreign:
                raise UsageError(f"{directory} holds {foreign[0]}: name another directory for the model.")
            for name, content in files.items():
                (directory / name).write_text(content + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{directory} cannot be written ({error.strerror}): name another directory.") from error
    sharing = ", sharing top-k" if index_share else ""
    console.print(f"{directory}: GLM-5.2's geometry, {layers} layers{sharing}, {experts} experts, no weights.")


if __name__ == "__main__":
    typer.run(main)
