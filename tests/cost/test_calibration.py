"""The calibration file: what goes in comes out to the bit; anything else is refused in one sentence."""

import json
from dataclasses import replace

import pytest

from sglang_cp.cost.calibration import Calibration, CalibrationKey, read_calibration, write_calibration
from sglang_cp.cost.fit import Fit, Measurement
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import TERMS, Geometry, Mode
from sglang_cp.errors import UsageError

KEY = CalibrationKey(
    device="NVIDIA H200",
    model={"architecture": "GlmMoeDsaForCausalLM", "layers": 6},
    dtype="bfloat16",
    kv_cache_dtype="bfloat16",
    tp=2,
    shard_source="symmetric memory",
    versions={"sglang": "0.5.15.post1", "sglang_cp": "0.1.0", "torch": "2.11.0"},
)
FIT = Fit(
    CostModel(Geometry(2, 2048), {"rows": 0.1 + 0.2, "scoring": 1e-10 / 3}, 0.006, {Mode.TP: 1 / 7}),
    (
        Measurement(ExtendShape.of([64, 3], [0, 9]), Mode.TP, 0.0123456789012345),
        Measurement(ExtendShape.of([64]), Mode.CP, 2e-3),
    ),
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "cache" / KEY.file_name
    write_calibration(path, Calibration.from_fit(KEY, FIT))
    return path


def test_a_fit_comes_back_to_the_bit(path):
    back = read_calibration(path, KEY).to_fit()
    # A term that was not fitted is 0 in the file: one that lacks a term is broken.
    complete = {**dict.fromkeys(TERMS, 0.0), **FIT.model.coefficients}
    assert back == replace(FIT, model=replace(FIT.model, coefficients=complete))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"tp": 4}, "tp is 2, not 4"),
        ({"device": "AMD Instinct MI355X"}, "device is NVIDIA H200, not AMD Instinct MI355X"),
        ({"dtype": "float32"}, "dtype is bfloat16, not float32"),
        ({"versions": {**KEY.versions, "torch": "2.12.0"}}, "versions is"),
        ({"model": {**KEY.model, "layers": 78}}, "model is"),
    ],
)
def test_a_key_of_another_server_is_stale(path, change, difference):
    other = KEY.model_copy(update=change)
    assert other.file_name != KEY.file_name
    with pytest.raises(UsageError, match=f"is for another server .*{difference}.*: measure again"):
        read_calibration(path, other)


def test_the_file_name_does_not_depend_on_the_order_of_the_key():
    reordered = KEY.model_copy(update={"versions": dict(reversed(KEY.versions.items()))})
    assert reordered.file_name == KEY.file_name


def edited(path, edit):
    table = json.loads(path.read_text())
    edit(table)
    path.write_text(json.dumps(table))
    return path


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda t: t["coefficients"].update(rows=float("nan")), "coefficients.rows: Input should be a finite number"),
        (
            lambda t: t["coefficients"].update(rows=-1e-9),
            "coefficients.rows: Input should be greater than or equal to 0",
        ),
        (
            lambda t: t["measurements"][0].update(seconds=float("inf")),
            "measurements.0.seconds: Input should be a finite",
        ),
        (lambda t: t["measurements"][0].update(seconds=0), "measurements.0.seconds: Input should be greater than 0"),
        (lambda t: t["measurements"][1].update(extend_lens=[-64]), "measurements.1.extend_lens.0"),
        (lambda t: t["measurements"][1].update(prefix_lens=[]), "1 extend lengths do not go with 0 prefixes"),
        (lambda t: t["measurements"][1].update(mode="dp"), "measurements.1.mode"),
        (lambda t: t.update(schema_version=2), "schema_version: Input should be 1"),
        (lambda t: t["coefficients"].update(magic=1.0), "unknown terms ['magic']"),
        (lambda t: t.update(coefficients={}), "no coefficient of attention"),
        (lambda t: t["coefficients"].pop("launch_tp"), "no coefficient of launch_tp"),
        (lambda t: t["coefficients"].update(dict.fromkeys(t["coefficients"], 0.0)), "every coefficient is 0"),
        (lambda t: t["coefficients"].update(rows=1e300), "coefficients.rows: Input should be less than"),
        (lambda t: t.update(pull_seconds=1e308), "pull_seconds: Input should be less than"),
        (lambda t: t["measurements"][1].update(seconds=1e308), "measurements.1.seconds"),
        (lambda t: t["measurements"][1].update(extend_lens=[0]), "measurements.1.extend_lens.0"),
        (lambda t: t["measurements"][1].update(extend_lens=[10**30]), "measurements.1.extend_lens.0"),
        (lambda t: t["key"].update(tp=10**20), "key.tp"),
        (lambda t: t.update(measurements=t["measurements"][:1]), "no extend was measured as"),
        (lambda t: t.update(measurements=t["measurements"][:1] * 9), "no extend was measured as"),
        (
            lambda t: t.update(measurements=t["measurements"][:2], coefficients=dict.fromkeys(t["coefficients"], 1e-6)),
            "too few for 8 coefficients",
        ),
        (lambda t: t.update(surprise=1), "surprise: Extra inputs are not permitted"),
        (lambda t: t["key"].update(tp="2"), "key.tp: Input should be a valid integer"),
        (lambda t: t.pop("key"), "key: Field required"),
    ],
)
def test_a_broken_file_is_refused_by_name(path, edit, named):
    with pytest.raises(UsageError) as refused:
        read_calibration(edited(path, edit), KEY)
    sentence = str(refused.value)
    assert named in sentence
    assert sentence.startswith(f"The calibration {path} cannot be used (")
    assert sentence.endswith("measure again with `sglang-cp calibrate`.")
    assert "\n" not in sentence


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95pickle", b"[]", b"null"])
def test_what_is_no_calibration_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be used"):
        read_calibration(path)


def test_a_truncated_file_is_refused(path):
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"cannot be used .*EOF"):
        read_calibration(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot be read \(No such file"):
        read_calibration(tmp_path / "none.json")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\): give another place"):
        write_calibration(path, Calibration.from_fit(KEY, FIT))
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_fit_for_another_tp_than_the_key_is_refused():
    with pytest.raises(ValueError, match="the fit is for tp 2, the key for tp 4"):
        Calibration.from_fit(KEY.model_copy(update={"tp": 4}), FIT)
