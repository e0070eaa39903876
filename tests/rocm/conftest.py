import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def record(tmp_path_factory):
    """What SGLang's ROCm path does: see record.py."""
    out = tmp_path_factory.mktemp("rocm") / "record.pt"
    command = [sys.executable, "-m", "tests.rocm.record", str(out)]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=840)
    assert result.returncode == 0, result.stderr[-5000:]
    return torch.load(out, weights_only=False)
