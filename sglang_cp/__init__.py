"""Interleave prefill context parallelism for DSA models in SGLang."""
