import torch

from sglang_cp.memory import weight_bytes


def test_every_weight_counts_once():
    model = torch.nn.Module()
    model.attention = torch.nn.Linear(4, 8, bias=False)
    model.tied = torch.nn.Linear(4, 8, bias=False)
    model.tied.weight = model.attention.weight
    model.register_buffer("table", torch.zeros(6, dtype=torch.float64))
    assert weight_bytes(model) == 4 * 8 * 4 + 6 * 8
    # The absorbed kv_b_proj is neither a parameter nor a buffer; a scale may be a plain number.
    model.attention.w_kc = torch.zeros(2, 3, dtype=torch.bfloat16)
    model.attention.w_scale = 1.0
    model.attention.w_vc = model.attention.weight.data.view(2, 4, 4)
    assert weight_bytes(model) == 4 * 8 * 4 + 6 * 8 + 12


def test_views_of_one_arena_count_as_what_they_hold():
    arena = torch.zeros(1024, dtype=torch.uint8)
    model = torch.nn.Linear(4, 8, bias=False)
    model.weight.data = arena[256:384].view(torch.float32).view(8, 4)
    assert weight_bytes(model) == 128


def test_a_draft_model_counts_without_what_it_shares():
    target, draft = torch.nn.Linear(4, 8, bias=False), torch.nn.Module()
    draft.lm_head, draft.eh_proj = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 4, bias=False)
    assert weight_bytes(draft, beside=target) == 2 * 4 * 8 * 4
    draft.lm_head.weight = target.weight
    assert weight_bytes(draft, beside=target) == 4 * 8 * 4
