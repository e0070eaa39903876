"""The strategy object that SGLang asks: CP as a property of one forward batch, on a server that is plain TP.

Bound by ``sglang.srt.layers.cp.base.init_cp_strategy`` in every process; SGLang's own CP runner then drives a forward
that ``can_apply`` accepts: ``build_metadata`` before the attention backend plans, ``shard_*`` after the embedding,
``gather_hidden_states`` after the last norm.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_WEIGHTS
from sglang.srt.layers.cp.base import ContextParallelStrategy, ContextParallelStrategyKind
from sglang.srt.runtime_context import get_parallel

from sglang_cp import agreement, logits
from sglang_cp.cost.calibration import Calibration
from sglang_cp.cost.terms import Mode
from sglang_cp.counters import COUNTERS
from sglang_cp.decision import AUTO, DEFAULT_MIN_TOKENS, Decision, Policy, Predicted, Threshold
from sglang_cp.extend import CPExtend
from sglang_cp.layout import TokenLayout
from sglang_cp.plugin import check_loaded
from sglang_cp.row_choice import choose_rows, row_copies
from sglang_cp.rows import ProcessGroupRows, RowCollectives
from sglang_cp.startup import fixed_min_tokens, plain_tp_reasons
from sglang_cp.weights.kind import SourceKind
from sglang_cp.weights.placement import ShardedAttention

logger = logging.getLogger(__name__)

_DECISION = "_sglang_cp_decision"
"""Where a forward batch keeps its decision, with the rows that it was made for: a batch of another size is another."""


class PerBatchInterleaveStrategy(ContextParallelStrategy):
    """Interleave CP over the TP group for long extends; every other forward is SGLang's plain TP."""

    name = "interleave"
    kind = ContextParallelStrategyKind.INTERLEAVE

    def __init__(self, server_args: Any) -> None:
        super().__init__(cp_size=server_args.tp_size)
        self.auto = server_args.cp_min_tokens == AUTO
        """Whether a cost model decides once extends were measured; until then the default threshold does."""
        self._min_tokens = fixed_min_tokens(server_args) or DEFAULT_MIN_TOKENS
        self._policy: Policy = Threshold(server_args.tp_size, self._min_tokens)
        self._calibration: Calibration | None = None
        self._forced: Mode | None = None
        self._latest: tuple[Decision, int] | None = None
        self._plain_tp_reasons = plain_tp_reasons(server_args)
        self._source_kind = SourceKind(server_args.cp_shard_source)
        self._rows_kind = SourceKind(server_args.cp_row_collectives)
        self._rows: RowCollectives | None = None
        self._choose_rows: Callable[[], RowCollectives] | None = None
        self._placement: ShardedAttention | None = None
        self._agreement: agreement.AgreementCheck | None = None
        self._index_topk = 0

    @property
    def cp_rank(self) -> int:
        """This rank in the TP group, which the rows are dealt to."""
        return int(get_parallel().tp_rank)

    def on_model_loaded(self, model_runner: Any) -> None:
        """Called once per process after the target model is loaded, before the KV pool is sized."""
        check_loaded()
        log = logger.info if self.cp_rank == 0 else logger.debug
        if self._plain_tp_reasons:
            log("CP: every extend of this server runs as plain TP, because of %s", ", ".join(self._plain_tp_reasons))
            return
        self._placement = ShardedAttention(
            model_runner.model,
            model_runner.tp_group.cpu_group,
            _device(model_runner),
            source=self._source_kind,
            memory_saver=_memory_saver(model_runner),
        )
        self._open_rows(model_runner.tp_group, _device(model_runner))
        if agreement.requested():
            self._agreement = agreement.AgreementCheck(model_runner.tp_group.ranks)
        self._index_topk = int(model_runner.model_config.hf_config.index_topk)
        log(
            "CP: extends %s are dealt to %d ranks; attention weights: sharded, from %s, "
            "%.1f MB of a layer on each rank, %.1f MB of buffers",
            "that are predicted to be faster so" if self.auto else f"of at least {self._min_tokens:,} new tokens",
            self.cp_size,
            self._placement.source_name,
            self._placement.shard_bytes / 1e6,
            self._placement.buffer_bytes / 1e6,
        )

    def _open_rows(self, tp_group: Any, device: torch.device) -> None:
        by_group = self._rows = ProcessGroupRows(tp_group, self.cp_size)
        copies = row_copies(self._rows_kind, tp_group.cpu_group, device)
        self._choose_rows = partial(choose_rows, self._rows_kind, by_group, copies, tp_group.cpu_group, device)

    def choose_rows(self) -> None:
        """Called once before the server serves, on every rank: measure how the ranks exchange rows best."""
        if self._choose_rows:
            self._rows, self._choose_rows = self._choose_rows(), None
            if self.cp_rank == 0:
                logger.info("CP: rows by %s, %.1f MB of staging", self._rows.name, self._rows.num_bytes / 1e6)

    @property
    def placement(self) -> ShardedAttention | None:
        """Where the attention weights of all heads come from; None until the model is loaded, or without CP."""
        return self._placement

    @property
    def rows(self) -> RowCollectives | None:
        """How the ranks exchange rows; None until the model is loaded, or without CP."""
        return self._rows

    def weights_change(self) -> contextlib.AbstractContextManager[None]:
        """Put around a change of the model's weights on every rank, so that no rank pulls a half-changed layer."""
        return self._placement.weights_change() if self._placement else contextlib.nullcontext()

    # What extends cost here.

    @property
    def calibration(self) -> Calibration | None:
        """The extends that were measured on this server, or on one like it, if any were."""
        return self._calibration

    def adopt(self, calibration: Calibration) -> None:
        """Report ``calibration`` and, with ``--cp-min-tokens auto``, decide by it. It must be equal on all ranks."""
        self._calibration = calibration
        if self.auto:
            self._policy = Predicted(calibration.to_fit().model)

    @contextlib.contextmanager
    def forced(self, mode: Mode) -> Iterator[None]:
        """Within it every extend that can be dealt out is, or none is; nothing is counted."""
        self._forced = mode
        try:
            yield
        finally:
            self._forced = self._latest = None

    @property
    def is_forced(self) -> bool:
        """Whether a mode is forced now: what runs serves no request."""
        return self._forced is not None

    def pull_all(self) -> None:
        """Pull the shards of all layers, one after the other, and use none."""
        assert self._placement is not None
        self._placement.pull_all()

    # The decision.

    def can_apply(self, num_tokens: int, forward_batch: Any) -> bool:
        """Whether this forward is dealt out; the same answer on every rank, however often it is asked."""
        return self.decide(num_tokens, forward_batch).context_parallel

    def decide(self, num_tokens: int, forward_batch: Any) -> Decision:
        """The decision and its reason; made once, and from then on read from the batch.

        Args:
            num_tokens: rows of the flattened batch, with any padding.
            forward_batch: SGLang's. A copy by ``dataclasses.replace`` is decided anew, until it is being dealt out.
        """
        decided_for, decision = getattr(forward_batch, _DECISION, (None, None))
        if decision is None or decided_for != num_tokens:
            decision = self._decide(num_tokens, forward_batch)
            setattr(forward_batch, _DECISION, (num_tokens, decision))
        return decision

    def _decide(self, num_tokens: int, forward_batch: Any) -> Decision:
        if isinstance(forward_batch.attn_cp_metadata, CPExtend):
            return Decision(True, "decided before the attention backend planned")
        if self._placement is None:
            return Decision(False, "CP is off")
        if not forward_batch.forward_mode.is_context_parallel_extend():
            return Decision(False, "not an extend")
        if forward_batch.spec_info is not None and forward_batch.spec_info.is_draft_input():
            return Decision(False, "draft model")
        decision = self._decide_extend(num_tokens, forward_batch)
        if self._agreement:
            mode = "CP" if decision.context_parallel else "plain TP"
            self._agreement.check(f"{mode} ({decision}) for new tokens {forward_batch.extend_seq_lens_cpu}")
        self._latest = decision, num_tokens
        return decision

    @property
    def latest(self) -> tuple[Decision, int] | None:
        """The decision about the extend that is being issued and its new tokens, if one is."""
        return self._latest

    def take_latest(self) -> tuple[Decision, int] | None:
        """The decision about the extend that just ran and its new tokens, once; None if it was no extend."""
        latest, self._latest = self._latest, None
        return latest

    def _decide_extend(self, num_tokens: int, forward_batch: Any) -> Decision:
        extend_lens = forward_batch.extend_seq_lens_cpu
        if extend_lens is None or forward_batch.seq_lens_cpu is None:
            return Decision(False, "lengths are not known on the host")
        if sum(extend_lens) != num_tokens or forward_batch.global_num_tokens_cpu is not None:
            return Decision(False, "padded batch")
        if forward_batch.can_run_tbo:
            return Decision(False, "two-batch overlap")
        if forward_batch.input_embeds is not None or forward_batch.replace_embeds is not None:
            return Decision(False, "input embeddings")
        if not forward_batch.needs_forward_metadata_init():
            return Decision(False, "attention already planned")
        if self._forced is not None:
            return Decision(self._forced is Mode.CP, "forced")
        totals = [int(total) for total in forward_batch.seq_lens_cpu]
        return self._policy.decide(extend_lens, [total - new for total, new in zip(totals, extend_lens, strict=True)])

    def blocks_prefill_graph(self, forward_batch: Any) -> bool:
        """A captured prefill graph is plain TP: replay it for all forwards but those dealt out."""
        return forward_batch.input_ids is not None and self.can_apply(len(forward_batch.input_ids), forward_batch)

    # One CP extend.

    def build_metadata(
        self, num_tokens: int, seqs_len: list[int] | None, extend_seqs_len: list[int] | None = None
    ) -> CPExtend:
        """The object that the seams find on the forward batch; starts the first layer's pull."""
        assert self._placement is not None
        assert self._rows is not None
        assert seqs_len is not None
        assert extend_seqs_len is not None
        layout = TokenLayout(num_tokens, self.cp_size, self.cp_rank)
        if self._forced is None:
            COUNTERS.count(layout, seqs_len, extend_seqs_len, self._index_topk)
        self._placement.begin()
        return CPExtend(layout, self._rows, self._placement)

    def shard_hidden_states(self, x: Any, forward_batch: Any) -> Any:
        return forward_batch.attn_cp_metadata.shard_rows(x)

    def shard_position_ids(self, positions: Any, forward_batch: Any) -> Any:
        return forward_batch.attn_cp_metadata.shard_rows(positions)

    def gather_hidden_states(self, x: Any, forward_batch: Any, stream: Any = None) -> Any:
        """[padded_rows, hidden] -> the rows that the LM head reads; ``logits.metadata`` tells upstream which."""
        extend, places = forward_batch.attn_cp_metadata, logits.places(forward_batch)
        return extend.gather_rows(x) if places is None else extend.gather_rows_at(x, places)

    def gather_kv_cache(self, x: Any, forward_batch: Any, stream: Any = None) -> Any:
        return forward_batch.attn_cp_metadata.gather_rows(x)

    # DSA's backend plans and runs its own sparse attention on the local rows.

    def run_attention(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("the DSA backend runs its own attention under interleave CP")

    def materialize_full_kv(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("MLA's latents are gathered before the DSA backend stores them")


def _device(model_runner: Any) -> torch.device:
    """The runner's device with its index."""
    return (
        torch.device("cpu") if model_runner.device == "cpu" else torch.device(model_runner.device, model_runner.gpu_id)
    )


def _memory_saver(model_runner: Any) -> contextlib.AbstractContextManager[Any] | None:
    """With ``--enable-memory-saver``: the region whose memory goes when the server releases its weights."""
    if not model_runner.server_args.enable_memory_saver:
        return None
    region: contextlib.AbstractContextManager[Any] = model_runner.memory_saver_adapter.region(GPU_MEMORY_TYPE_WEIGHTS)
    return region
