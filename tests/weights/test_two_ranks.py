import subprocess
import sys


def test_both_sources_between_two_processes():
    run = subprocess.run(
        [sys.executable, "-m", "tests.weights.two_ranks"], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.stdout.endswith("passed\n"), run.stderr[-3000:]
