"""The extends that the choice is judged on."""

from evals.regret_grid import grid, small_grid
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.shapes import calibration_shapes
from sglang_cp.cost.terms import Geometry


def test_the_full_grid_is_that_of_the_goal():
    shapes = grid()
    assert len(shapes) == len(set(shapes)) == 200
    assert {len(shape.extend_lens) for shape in shapes} == {1, 2, 4, 8, 16}
    assert {shape.prefix_lens[0] for shape in shapes} == {0, 1024, 4096, 16384, 65536}
    assert max(shape.rows for shape in shapes) == 32768
    assert min(shape.rows for shape in shapes) == 64


def test_a_chunk_cuts_the_last_request_that_it_holds():
    assert grid([100], [3], [7], [250]) == [ExtendShape.of([100, 100, 50], [7, 7, 7])]
    assert grid([100], [3], [0], [200]) == [ExtendShape.of([100, 100])]


def test_the_small_grid_is_for_a_tiny_model_and_not_what_it_is_calibrated_with():
    shapes = small_grid()
    assert {len(shape.extend_lens) for shape in shapes} == {1, 4}
    assert max(shape.rows for shape in shapes) == 192
    for tp in (2, 4, 8):
        known = calibration_shapes(Geometry(tp, 32), chunk_tokens=512, context_tokens=16384)
        assert not set(known) & set(shapes)
