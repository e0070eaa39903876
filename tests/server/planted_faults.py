"""A plugin for SGLang that plants one fault at a time into a running CP server, named in a file.

The parity harness must see each of them; see test_planted_faults.py.
"""

import os
from pathlib import Path

import torch

FAULTS = {
    "ke one too small on one rank": "sglang.srt.layers.attention.dsa_backend.DeepseekSparseAttnBackend."
    "_cal_indexer_k_start_end",
    "o_proj reduced twice": "sglang_cp.weights.projections.RowProjection.__call__",
    "positions not sharded": "sglang_cp.strategy.PerBatchInterleaveStrategy.shard_position_ids",
    "gathered rows left in rank order": "sglang_cp.rows.ProcessGroupRows.all_gather_dealt",
    "shards in the wrong rank order": "sglang_cp.weights.pipeline.WeightPipeline._views_of",
    "one rank's padding row not dropped from its neighbours": "sglang_cp.layout.TokenLayout.own",
    "pool written with local rows only": "sglang_cp.extend.CPExtend.gather_rows",
    "next layer's pull into the buffer in use": "sglang_cp.weights.pipeline.WeightPipeline._views_of",
}
DISAGREEMENT = "one rank decides for itself"
FILE = "PLANTED_FAULT_FILE"


def planted() -> str:
    path = Path(os.environ[FILE])
    return path.read_text() if path.exists() else ""


def rank() -> int:
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().tp_rank


def ke(result, backend, forward_batch, bs_idx=None):
    if bs_idx is None or rank() != 1:
        return result
    (start, end), batch_index = result
    return (start, end - 1), batch_index


def reduced_twice(result, projection, x):
    output, bias = result
    return output * projection._size, bias


def positions_not_sharded(result, strategy, positions, forward_batch):
    return positions[: result.shape[0]]


def rank_order(result, rows, local):
    return result.unflatten(0, (len(local), -1)).transpose(0, 1).flatten(0, 1)


def wrong_rank_order(views, pipeline, layer, shards):
    # Of one weight only: heads that change places everywhere are still the same heads.
    name = "o_proj.weight"
    return views._replace(weights={**views.weights, name: views.weights[name].flip(0)})


def neighbours_rows(result, layout, rows):
    return torch.roll(rows, -1, dims=0)[layout.rank :: layout.size].contiguous() if rows.dim() == 2 else result


def decides_for_itself(result, policy, extend_lens, prefix_lens):
    if planted() != DISAGREEMENT or rank() != 1:
        return result
    return type(result)(False, "planted")


def local_rows_only(result, extend, local):
    if result.shape[-1] < 512:  # no latents
        return result
    mine = torch.arange(len(result)) % extend.layout.size == extend.layout.rank
    return torch.where(mine.view(-1, *[1] * (result.dim() - 1)), result, 0)


def one_buffer(views, pipeline, layer, shards):
    first = pipeline._buffers._slots[0]
    places = {
        name: first[place.storage_offset() :][: place.numel()].view_as(place) for name, place in views.places.items()
    }
    return views._replace(places=places, weights={shard.name: shard.by_rank(places[shard.name]) for shard in shards})


BODIES = dict(
    zip(
        FAULTS,
        (
            ke,
            reduced_twice,
            positions_not_sharded,
            rank_order,
            wrong_rank_order,
            neighbours_rows,
            local_rows_only,
            one_buffer,
        ),
        strict=True,
    )
)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, target in FAULTS.items():
        HookRegistry.register(target, _only_when_planted(name), HookType.AFTER)
    HookRegistry.register("sglang_cp.decision.Threshold.decide", decides_for_itself, HookType.AFTER)


def _only_when_planted(name):
    def hook(result, *args, **kwargs):
        return BODIES[name](result, *args, **kwargs) if planted() == name else result

    return hook
