"""UPSTREAM is the one pin: whatever else names a release agrees with it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from sglang_cp import pin
from sglang_cp.compat import tomllib
from sglang_cp.errors import UsageError
from sglang_cp.patching.tree import open_tree

CHECKOUT = Path(__file__).parents[1]


def test_pyproject_installs_the_pinned_release() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = [item for item in requirements if re.match(r"sglang\b(?!-)", item)]
    assert names == [f"sglang=={pin.read_pin().release}"]


def test_the_pin_has_a_wheel_for_every_supported_python() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.10,<3.13"
    wheels = pin.read_pin().wheel_sha256
    assert set(wheels) == {"cp310", "cp311", "cp312"}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in wheels.values())


def test_the_pinned_release_has_a_series_and_is_what_is_installed() -> None:
    release = pin.read_pin().release
    assert (pin.series_dir(release) / "series").is_file()
    assert open_tree().release == release


def test_the_wheel_carries_what_is_read_at_run_time() -> None:
    tool = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]
    assert tool["hatch"]["build"]["targets"]["wheel"]["force-include"] == {
        "UPSTREAM": "sglang_cp/_data/UPSTREAM",
        "patches": "sglang_cp/_data/patches",
    }


def test_data_of_a_checkout_and_of_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pin.data_dir() == CHECKOUT
    package = tmp_path / "site-packages/sglang_cp"
    (package / "_data").mkdir(parents=True)
    (package / "_data/UPSTREAM").write_text('release = "9"\n[wheel_sha256]\ncp311 = "0"\n')
    monkeypatch.setattr(pin, "_PACKAGE_DIR", package)
    assert pin.read_pin() == pin.Pin("9", {"cp311": "0"})
    assert pin.series_dir("9") == package / "_data/patches/9"


@pytest.mark.parametrize(
    "content", [None, b"", b'release = "1"', b"release = 1\n[wheel_sha256]\n", b"release", b"\xff"]
)
def test_an_unusable_pin_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "UPSTREAM").write_bytes(content)
    with pytest.raises(UsageError, match=r"^The pin .*UPSTREAM"):
        pin.read_pin(tmp_path / "UPSTREAM")
