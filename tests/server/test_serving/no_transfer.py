"""A plugin for SGLang: a prefill server whose KV goes nowhere, by the fake transfer that SGLang warms up with.

SGLang takes ``--disaggregation-transfer-backend fake`` for decode servers only.
"""


def fake_class(get_kv_class, backend, kind):
    from sglang.srt.disaggregation.utils import KVClassType, TransferBackend

    if kind is KVClassType.BOOTSTRAP_SERVER:
        return lambda **_: None
    return get_kv_class(TransferBackend.FAKE, kind)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.disaggregation.utils.get_kv_class", fake_class, HookType.AROUND)
