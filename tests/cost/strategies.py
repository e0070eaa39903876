"""Extends and models for hypothesis."""

from hypothesis import strategies as st

from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import TERMS, Geometry

GEOMETRIES = st.builds(Geometry, tp=st.sampled_from([2, 4, 8]), index_topk=st.integers(1, 64))
SHAPES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=4).map(
    lambda lens: ExtendShape.of([extend for extend, _ in lens], [prefix for _, prefix in lens])
)
COEFFICIENTS = st.fixed_dictionaries({term: st.floats(0, 1e-3) for term in TERMS})


def grown(shape: ExtendShape, *, rows: int = 0, prefix: int = 0) -> ExtendShape:
    """The shape with more new tokens, or a longer prefix, in its first request."""
    (extend, *extends), (before, *befores) = shape.extend_lens, shape.prefix_lens
    return ExtendShape.of([extend + rows, *extends], [before + prefix, *befores])
