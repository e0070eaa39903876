"""The cache serves its own server only, and whatever is wrong with it is one warning."""

import logging
from pathlib import Path

import pytest

from sglang_cp.calibration.cache import cache_path, read_cached, write_cached
from tests.calibration.examples import cp_from_100_tokens, key


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_CP_CACHE_DIR", str(tmp_path / "new"))
    return tmp_path / "new"


def test_what_is_written_is_read_again_by_the_same_server_only(directory):
    example = cp_from_100_tokens(key())
    assert write_cached(example) == cache_path(key())
    assert [path.parent for path in directory.iterdir()] == [directory]
    assert read_cached(key()) == example
    for other in (key(tp=4), key(device="another"), key(dtype="bfloat16"), key(versions={"sglang": "2"})):
        assert read_cached(other) is None


@pytest.mark.parametrize(
    "content",
    ["", "{", cp_from_100_tokens(key()).dumps().replace("1e-6", "NaN"), cp_from_100_tokens(key(tp=4)).dumps()],
)
def test_a_broken_or_foreign_file_is_one_warning_that_names_it(content, directory, caplog):
    directory.mkdir()
    cache_path(key()).write_text(content)
    assert read_cached(key()) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(cache_path(key())) in record.getMessage()


def test_no_file_is_no_warning(caplog):
    assert read_cached(key()) is None
    assert caplog.records == []


def test_an_unwritable_place_is_one_warning(directory, caplog):
    directory.write_text("a file where the directory should be")
    assert write_cached(cp_from_100_tokens(key())) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "SGLANG_CP_CACHE_DIR" in record.getMessage()
    assert directory.read_text() == "a file where the directory should be"


def test_by_default_it_is_in_the_users_cache_directory(monkeypatch):
    monkeypatch.delenv("SGLANG_CP_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_path(key()).parent == Path("/elsewhere/sglang-cp/calibration")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_path(key()).parent == Path("/home/someone/.cache/sglang-cp/calibration")
