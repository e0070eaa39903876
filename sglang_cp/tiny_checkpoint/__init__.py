"""A random DSA checkpoint of a few megabytes that transformers and SGLang both load.

`write_tiny_checkpoint(directory, TinyConfig())` writes it; `sglang-cp tiny-checkpoint DIR` does from a shell.
The sizes that SGLang's DSA kernels fix (latent 512 + 64, index keys of 128) are kept, all else is small.
"""

from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.writer import Summary, write_tiny_checkpoint

__all__ = ["Summary", "TinyConfig", "write_tiny_checkpoint"]
