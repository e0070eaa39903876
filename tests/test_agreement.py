import pytest
import torch

from sglang_cp import agreement
from sglang_cp.agreement import AgreementCheck, DisagreementError


class Group:
    """Ranks one at a time: what the others would say is known."""

    def __init__(self, monkeypatch, others):
        self.others = others
        monkeypatch.setattr(agreement.dist, "new_group", lambda ranks, backend: self)
        monkeypatch.setattr(agreement.dist, "all_reduce", self.all_reduce)
        monkeypatch.setattr(agreement, "exchange", lambda group, mine: [mine, *others])

    def all_reduce(self, extremes, op, group):
        assert op is torch.distributed.ReduceOp.MAX
        self.others, others = [], self.others
        for said in others:
            digest = agreement._digest(said)
            extremes.copy_(torch.maximum(extremes, torch.tensor([digest, -digest])))


def test_ranks_that_say_the_same_go_on(monkeypatch):
    Group(monkeypatch, ["CP"] * 3)
    AgreementCheck([0, 1, 2, 3]).check("CP")


@pytest.mark.parametrize("others", [["CP", "TP"], ["TP", "TP"], ["CP", "CP for other tokens"]])
def test_a_disagreement_names_what_every_rank_decided(monkeypatch, others):
    Group(monkeypatch, others)
    with pytest.raises(DisagreementError, match=rf"rank 0: CP; rank 1: {others[0]}; rank 2: {others[1]}"):
        AgreementCheck([0, 1, 2]).check("CP")


@pytest.mark.parametrize(("value", "asked"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_it_is_off_unless_asked_for(monkeypatch, value, asked):
    monkeypatch.setenv(agreement.VARIABLE, value)
    assert agreement.requested() is asked
