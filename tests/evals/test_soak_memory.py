"""Memory of a process tree, and growth told from noise."""

import mmap
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from evals.soak_memory import Sample, growth, measure, sampling

GIB = 1 << 30
CHILD = (
    "import time; held = bytearray(64 << 20); held[::4096] = b'x' * len(held[::4096]);"
    "print('ready', flush=True); time.sleep(60)"
)


def samples(pss, step_s=10.0):
    return [Sample(step_s * (number + 1), 4, 2 * int(value), int(value)) for number, value in enumerate(pss)]


def test_noise_is_no_growth():
    noise = np.random.default_rng(0).normal(0, 0.01 * GIB, 360)
    assert abs(growth(samples(GIB + noise), 600.0)) < 0.005


@pytest.mark.parametrize("grown", [0.03, 0.5])
def test_a_leak_is_growth(grown):
    noise = np.random.default_rng(0).normal(0, 0.005 * GIB, 360)
    leak = np.maximum(0, np.arange(360) - 60) / 300 * grown * GIB
    assert growth(samples(GIB + noise + leak), 600.0) == pytest.approx(grown, rel=0.1)


def test_growth_during_the_warm_up_does_not_count():
    warm = np.minimum(np.arange(360) / 60, 1) * GIB
    assert growth(samples(GIB + warm), 600.0) == pytest.approx(0.0, abs=1e-3)


def test_one_spike_is_no_growth():
    flat = np.full(360, float(GIB))
    flat[-1] *= 2
    assert growth(samples(flat), 600.0) == pytest.approx(0.0, abs=1e-6)


def test_few_samples_say_nothing():
    with pytest.raises(ValueError, match="4 samples past 600 s say nothing"):
        growth(samples([GIB] * 63), 600.0)


def test_a_child_s_memory_counts():
    before = measure(os.getpid(), 0.0)
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        after = measure(os.getpid(), 0.0)
    finally:
        child.kill()
        child.wait()
    assert after.processes == before.processes + 1
    assert after.own - before.own > 60 << 20
    assert measure(child.pid, 0.0).processes == 0


def test_samples_come_at_their_interval():
    with sampling(os.getpid(), 0.05) as taken:
        time.sleep(0.5)
    count = len(taken)
    assert 3 <= count <= 10
    assert [sample.seconds for sample in taken] == sorted(sample.seconds for sample in taken)
    time.sleep(0.1)
    assert len(taken) == count


def test_what_files_share_with_other_programs_does_not_count(tmp_path):
    """A library's pages fall to fewer processes when another program ends, and PSS rises."""
    (tmp_path / "library").write_bytes(b"x" * (64 << 20))
    before = measure(os.getpid(), 0.0)
    with (tmp_path / "library").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[::4096]) > 0
        after = measure(os.getpid(), 0.0)
    assert after.rss - before.rss > 60 << 20
    assert after.own - before.own < 8 << 20
