"""Whether CP took part."""

from evals.participation import Participation, problems, stray

BEFORE = {"cp_extends": 5, "cp_rows": 900, "cp_rows_over_topk": 40}


def run(extends: int, over_topk: int) -> Participation:
    after = {"cp_extends": 5 + extends, "cp_rows": 900 + 10 * extends, "cp_rows_over_topk": 40 + over_topk}
    return Participation.count([100, 101, 99, 300], 100, BEFORE, after)


def test_counts_the_change_and_the_prompts_over_topk():
    counted = run(3, 7)
    assert counted.counters == {"cp_extends": 3, "cp_rows": 30, "cp_rows_over_topk": 7}
    assert counted.prompts_over_topk == 2  # of exactly index_topk tokens no key is dropped
    assert counted.as_dict()["share_over_topk"] == 0.5


def test_short_prompts_may_drop_nothing_in_one_run_but_not_in_all():
    assert problems({"10-shot": run(3, 0), "20-shot": run(3, 7)}) == []
    assert [p[:26] for p in problems({"10-shot": run(3, 0), "20-shot": run(1, 0)})] == ["CP: top-k dropped no key o"]


def test_every_run_needs_cp():
    found = problems({"10-shot": run(0, 0), "20-shot": run(3, 7)})
    assert len(found) == 1
    assert found[0].startswith("10-shot: no extend was dealt out: CP did not take part.")


def test_a_restarted_or_plain_server_took_no_part():
    restarted = Participation.count([300], 100, BEFORE, dict.fromkeys(BEFORE, 0))
    plain = Participation.count([300], 100, None, None)
    assert plain.counters is None
    for without in (restarted, plain):
        assert len(problems({"run": without})) == 2
        assert stray({"run": without}) == []


def test_a_baseline_with_cp_is_none():
    assert stray({"10-shot": run(0, 0), "20-shot": run(1, 0)}) == [
        "20-shot: the baseline has CP off, yet extends were dealt out."
    ]
