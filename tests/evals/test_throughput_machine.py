"""What is told of the machine and its versions."""

from evals.throughput_machine import describe

# Two GPUs that answer what the doctor asks of torch.
TORCH = """
class version:
    hip, cuda = None, "13.0"

class cuda:
    @staticmethod
    def init(): ...
    @staticmethod
    def device_count(): return 2
    @staticmethod
    def get_device_properties(index):
        class properties:
            name, major, minor, total_memory = f"NVIDIA H200 {index}", 9, 0, 140 * 2**30
        return properties
"""


def test_versions_and_gpus_are_those_that_a_server_would_see(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    versions, machine = describe()
    assert machine["gpus"] == ["NVIDIA H200 0, 140 GiB", "NVIDIA H200 1, 140 GiB"]
    assert versions["CUDA"] == "13.0"
    assert versions["SGLang"]
    assert len(versions["patch series"]) == 64


def test_what_cannot_be_told_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    versions, machine = describe()
    assert (machine["gpus"], machine["topology"]) == ([], None)
    assert (versions["commit"], versions["driver"], versions["CUDA"]) == (None, None, None)
    assert versions["Python"]
