from evals.prompts import BATCH, LENGTHS, PREFIXES, slices


def test_slices_have_their_lengths_and_none_begins_with_a_page_of_another():
    tokens = list(range(11_000))
    prompts = slices(tokens, LENGTHS + BATCH)
    assert [len(prompt) for prompt in prompts] == [*LENGTHS, *BATCH]
    long = [tuple(prompt[:64]) for prompt in slices(tokens, LENGTHS) if len(prompt) >= 64]
    assert len(set(long)) == len(long)


def test_prefixes_lie_on_page_boundaries_and_inside_pages():
    assert {prefix % 64 == 0 for prefix in PREFIXES} == {True, False}
