"""Every rank's word reaches every other one; silence and difference are one sentence."""

import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from sglang_cp import patching
from sglang_cp.alike import FLAGS, check_alike, this_ranks_word
from sglang_cp.errors import UsageError
from sglang_cp.pin import read_pin, series_dir


def check(words, seconds=0.2):
    """Every rank's error or None; a rank whose word is None runs without the package."""
    store = dist.HashStore()

    def one(rank):
        try:
            check_alike(store, rank, len(words), words[rank], seconds)
        except UsageError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(words)) as pool:
        return list(pool.map(one, [rank for rank, word in enumerate(words) if word is not None]))


def test_ranks_that_say_the_same_go_on():
    assert check(["a", "a", "a", "a"], seconds=10.0) == [None] * 4


def test_a_rank_that_says_nothing_is_named_on_all_others():
    for said in check(["a", None, "a"]):
        assert said.startswith("Rank 1 did not say within 0 s that it runs sglang-cp: install the package in the")


def test_a_rank_that_says_something_else_is_named_on_all():
    first, second, third = check(["a", "a", "b"], seconds=10.0)
    assert first.startswith("The ranks run different code or flags: rank 2 has b; rank 0 has a.")
    assert second.startswith("The ranks run different code or flags: rank 2 has b; rank 1 has a.")
    assert third.startswith("The ranks run different code or flags: rank 0 has a; rank 2 has b.")


def test_every_flag_that_the_patches_add_is_compared():
    from dataclasses import fields

    from sglang.srt.server_args import ServerArgs

    (patch,) = series_dir(read_pin().release).glob("*-server-flags.patch")
    added = re.findall(r"^\+    (cp_\w+): A\[", patch.read_text(), re.MULTILINE)
    assert set(added) <= {field.name for field in fields(ServerArgs)}
    assert len(added) >= 4
    assert set(added) <= set(FLAGS)


@pytest.mark.parametrize("changed", [*FLAGS, "patches"])
def test_a_ranks_word_depends_on_what_extends_depend_on(changed, monkeypatch):
    applied = {"digest": "0" * 64}
    monkeypatch.setattr(patching, "verify_applied", lambda: applied["digest"])
    args = SimpleNamespace(**dict.fromkeys(FLAGS, "x"))
    before = this_ranks_word(args)
    if changed == "patches":
        applied["digest"] = "1" * 64
    else:
        setattr(args, changed, "y")
    assert this_ranks_word(args) != before
