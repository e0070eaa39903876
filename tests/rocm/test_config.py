"""GLM-5.2's config under the transformers of ROCm images, which alias head_dim to qk_rope_head_dim."""

import json

import pytest
from sglang.srt.utils.hf_transformers import config as hf_config
from transformers import GlmMoeDsaConfig

CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 1,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "head_dim": 192,
}


@pytest.fixture
def parsed(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return lambda: hf_config.HfModelConfigParser().parse(str(tmp_path), trust_remote_code=False)


@pytest.fixture
def _aliased(monkeypatch):
    """transformers 5.4 to 5.8 (huggingface/transformers#46739)."""
    monkeypatch.setattr(
        GlmMoeDsaConfig, "attribute_map", {**GlmMoeDsaConfig.attribute_map, "head_dim": "qk_rope_head_dim"}
    )


@pytest.mark.usefixtures("_aliased")
def test_the_alias_is_undone_on_rocm(parsed, monkeypatch):
    assert parsed().qk_rope_head_dim == 192
    monkeypatch.setattr(hf_config, "is_hip", lambda: True)
    config = parsed()
    assert (config.qk_rope_head_dim, config.qk_head_dim) == (64, 256)


def test_without_the_alias_nothing_is_touched(parsed, monkeypatch):
    monkeypatch.setattr(hf_config, "is_hip", lambda: True)
    monkeypatch.setattr(GlmMoeDsaConfig, "get_config_dict", None)  # not even read
    assert hf_config._restore_qk_rope_head_dim(GlmMoeDsaConfig(), "nowhere", None) is None
