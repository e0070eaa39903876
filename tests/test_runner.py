"""The seam in SGLang's own runner: what leaves a CP extend, one rank at a time."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.cp import base
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.runner.eager_runner import EagerRunner

from sglang_cp.extend import CPExtend
from sglang_cp.layout import TokenLayout
from sglang_cp.strategy import PerBatchInterleaveStrategy
from tests.simulated import rows_of

SIZE, ROWS, HIDDEN = 4, 10, 6
# What the model returns, as multiples of its input: the hidden states, and those of the layers that EAGLE3 or DFlash
# draft from.
FACTORS = (2, 3, 5)


class Strategy(PerBatchInterleaveStrategy):
    """Deals every extend out, with collectives that know what the other ranks contribute."""

    def __init__(self, rank, complete):
        self.layouts = [TokenLayout(ROWS, SIZE, other) for other in range(SIZE)]
        self.rank, self.complete = rank, complete
        self.gathered = iter(FACTORS)

    def can_apply(self, num_tokens, forward_batch):
        return True

    def build_metadata(self, num_tokens, seqs_len, extend_seqs_len=None):
        return CPExtend(self.layouts[self.rank], None, placement=None)

    def gather_hidden_states(self, x, forward_batch, stream=None):
        factor = next(self.gathered)
        parts = [layout.pad(layout.own(self.complete)) * factor for layout in self.layouts]
        return CPExtend(self.layouts[self.rank], rows_of(self.rank, parts), placement=None).gather_rows(x)


class Model(SimpleNamespace):
    """Hidden states and those of two layers, of the rows it is given; and a head that keeps what it is given."""

    pp_group = SimpleNamespace(is_last_rank=True)
    lm_head = None
    capture_aux_hidden_states = True

    def get_input_embeddings(self):
        return lambda input_ids: self.complete

    def model(self, input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors):
        assert torch.equal(positions[: len(self.own)], self.own)
        hidden, *aux = (input_embeds * factor for factor in FACTORS)
        return hidden, aux

    def logits_processor(self, input_ids, hidden_states, lm_head, forward_batch, aux_hidden_states):
        return [hidden_states, *aux_hidden_states]


@pytest.mark.parametrize("rank", range(SIZE))
def test_hidden_states_of_all_layers_leave_complete_and_in_token_order(rank, monkeypatch):
    complete = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(0))
    planned = []
    model = Model(complete=complete, own=torch.arange(ROWS)[rank::SIZE])
    runner = EagerRunner.__new__(EagerRunner)
    runner.model_runner = SimpleNamespace(
        model=model,
        is_draft_worker=False,
        server_args=SimpleNamespace(enable_pdmux=True, cp_per_batch=True),
        device_timer=None,
        prefill_cuda_graph_runner=None,
        attn_backend=SimpleNamespace(
            init_forward_metadata=lambda forward_batch: planned.append(forward_batch.attn_cp_metadata)
        ),
        _extend_forward_kwargs=lambda forward_batch, pp_proxy_tensors: {},
    )
    forward_batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        input_ids=torch.arange(ROWS),
        positions=torch.arange(ROWS),
        seq_lens_cpu=[ROWS],
        extend_seq_lens_cpu=[ROWS],
        needs_forward_metadata_init=lambda: True,
    )
    monkeypatch.setattr(base, "_STRATEGY", Strategy(rank, complete))
    monkeypatch.setattr("sglang.srt.layers.cp.utils.enable_cp_v2", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(
        "sglang_cp.logits.last_rows_only", lambda forward_batch: None
    )  # drafting takes the rows of all tokens
    out = runner._execute_extend(forward_batch)
    assert isinstance(planned[0], CPExtend)  # the attention backend planned for this rank's rows
    assert len(out) == len(FACTORS)
    for hidden_states, factor in zip(out, FACTORS, strict=True):
        assert torch.equal(hidden_states, complete * factor)
