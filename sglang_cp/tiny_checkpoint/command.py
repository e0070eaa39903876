"""The command `sglang-cp tiny-checkpoint DIR`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sglang_cp.compat import StrEnum
from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.writer import write_tiny_checkpoint

_DEFAULT = TinyConfig()


class ArchChoice(StrEnum):
    """Architectures that the patches support."""

    glm = "glm"
    deepseek_v32 = "deepseek-v32"


class DtypeChoice(StrEnum):
    """Types that weights can be stored in."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class AttnQuantChoice(StrEnum):
    """Formats that attention weights can be stored in."""

    none = "none"
    block_fp8 = "block-fp8"
    quark_fp8 = "quark-fp8"
    mxfp4 = "mxfp4"


def tiny_checkpoint(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the checkpoint.")],
    arch: Annotated[ArchChoice, typer.Option(help="Model architecture.")] = ArchChoice.glm,
    layers: Annotated[int, typer.Option(help="Decoder layers.")] = _DEFAULT.layers,
    dense_layers: Annotated[int, typer.Option(help="Leading layers whose FFN is dense.")] = _DEFAULT.dense_layers,
    hidden: Annotated[int, typer.Option(help="Width of the residual stream.")] = _DEFAULT.hidden,
    heads: Annotated[int, typer.Option(help="Attention heads; --tp-size must divide them.")] = _DEFAULT.heads,
    q_lora_rank: Annotated[
        int | None, typer.Option(help="Width of the query latent; by default what --attn-quant needs.")
    ] = None,
    index_topk: Annotated[int, typer.Option(help="Keys that a query attends to.")] = _DEFAULT.index_topk,
    index_heads: Annotated[int, typer.Option(help="Heads of the lightning indexer.")] = _DEFAULT.index_heads,
    index_share: Annotated[
        bool, typer.Option("--index-share/--no-index-share", help="Let layers reuse the top-k before them.")
    ] = _DEFAULT.index_share,
    indexer_rope_interleave: Annotated[
        bool, typer.Option("--indexer-rope-interleave/--no-indexer-rope-interleave", help="As GLM-5.2 has it.")
    ] = _DEFAULT.indexer_rope_interleave,
    experts: Annotated[int, typer.Option(help="Routed experts of a layer.")] = _DEFAULT.experts,
    experts_per_token: Annotated[
        int, typer.Option(help="Routed experts that see a token.")
    ] = _DEFAULT.experts_per_token,
    nextn: Annotated[
        bool, typer.Option("--nextn/--no-nextn", help="Append a NextN layer, for --speculative-algorithm EAGLE.")
    ] = _DEFAULT.nextn,
    max_positions: Annotated[int, typer.Option(help="Longest context, in tokens.")] = _DEFAULT.max_positions,
    dtype: Annotated[DtypeChoice, typer.Option(help="Type of the stored weights.")] = DtypeChoice.bfloat16,
    attn_quant: Annotated[
        AttnQuantChoice, typer.Option(help="Format of the attention weights; wider heads where it needs them.")
    ] = AttnQuantChoice.none,
    seed: Annotated[int, typer.Option(help="Another seed, other weights.")] = _DEFAULT.seed,
    force: Annotated[bool, typer.Option("--force", help="Replace a tiny checkpoint that DIR holds.")] = False,
) -> None:
    """Write a random GLM-5.x or DeepSeek V3.2 checkpoint of a few megabytes, to try a server with."""
    config = TinyConfig.stored_as(
        attn_quant.value,
        arch=arch.value,
        layers=layers,
        dense_layers=dense_layers,
        hidden=hidden,
        heads=heads,
        index_topk=index_topk,
        index_heads=index_heads,
        index_share=index_share,
        indexer_rope_interleave=indexer_rope_interleave,
        experts=experts,
        experts_per_token=experts_per_token,
        nextn=nextn,
        max_positions=max_positions,
        dtype=dtype.value,
        seed=seed,
        **({} if q_lora_rank is None else {"q_lora_rank": q_lora_rank}),
    )
    summary = write_tiny_checkpoint(directory, config, force=force)

    table = Table.grid(padding=(0, 2))
    table.add_row("checkpoint", str(directory))
    table.add_row("model", f"{config.architecture}, {config.layers} layers, top-k {config.index_topk}")
    table.add_row("size", f"{summary.size_bytes / 1e6:.1f} MB, {summary.parameters:,} parameters")
    table.add_row("tp sizes", ", ".join(map(str, config.tensor_parallel_sizes)))
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    console.print("serve it on the CPU:")
    console.print(
        f"  SGLANG_PLATFORM=cpu_reference python -m sglang.launch_server --model-path {directory} --device cpu",
        markup=False,
    )
