"""``sglang-cp doctor``: what a support thread asks for, on one screen, and whether a launch would fail.

Layers, lowest first: ``model_config``, ``quantization``, ``weight_memory``, ``kv_pool``, ``estimate`` (pure: from a
config.json to bytes and tokens), ``machine`` (facts, each of which may be missing), ``launch`` (problems), ``report``,
``screen``, ``command``. Nothing here imports SGLang: the doctor must speak where SGLang does not start.
"""
