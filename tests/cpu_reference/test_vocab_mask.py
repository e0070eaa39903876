import torch
from xgrammar import allocate_token_bitmask

from sglang_cp.cpu_reference import shims


def test_only_tokens_of_the_grammar_keep_their_logits() -> None:
    logits = torch.arange(2 * 70, dtype=torch.float32).view(2, 70)
    mask = allocate_token_bitmask(2, 70)
    mask.zero_()
    mask[0, 0], mask[0, 2], mask[1] = 0b101, 1 << 1, -1  # tokens 0, 2 and 65 of row 0, all of row 1
    masked = logits.clone()
    shims.apply_vocab_mask(None, masked, mask)
    assert torch.isfinite(masked[0]).nonzero().flatten().tolist() == [0, 2, 65]
    assert torch.equal(masked[0, [0, 2, 65]], logits[0, [0, 2, 65]])
    assert torch.equal(masked[1], logits[1])
