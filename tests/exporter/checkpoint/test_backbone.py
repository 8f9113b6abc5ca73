"""config.json to a backbone: transformers' defaults, and everything that is refused."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.checkpoint.folders import BACKBONE, LLAMA, write_json
from transformers import AutoConfig

from quatrain.exporter.checkpoint import backbone
from quatrain.exporter.checkpoint.backbone import read_backbone
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.errors import CheckpointError, SpecError
from quatrain.exporter.spec import Backbone, LinearRopeScaling, Llama3RopeScaling

SIZES = {
    "vocab_size": 48,
    "hidden_size": 256,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(config: dict[str, Any], **changes: object) -> Backbone:
    return read_backbone(Fields({**config, **changes}, "config.json"))


def refusal(**changes: object) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read(LLAMA, **changes)
    assert "config.json" in caught.value.asked
    return caught.value


def test_llama_is_read_exactly() -> None:
    assert read(LLAMA) == BACKBONE


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_defaults_are_those_of_transformers(tmp_path: Path, model_type: str) -> None:
    config = {"model_type": model_type, **SIZES}
    write_json(tmp_path / "config.json", config)
    theirs = AutoConfig.from_pretrained(tmp_path)
    ours = read(config)
    head_dim = getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert ours.head_dim == head_dim
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    same = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
    for name in same:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.rope_scaling is None


def test_null_heads_and_head_dim_are_derived() -> None:
    backbone = read(LLAMA, num_key_value_heads=None, head_dim=None)
    assert (backbone.num_key_value_heads, backbone.head_dim) == (4, 4)


@pytest.mark.parametrize(
    ("model_type", "attention_bias", "expected"),
    [
        ("llama", False, (False, False, False)),
        ("llama", True, (True, True, False)),
        ("qwen2", False, (True, False, False)),
        ("qwen3", False, (False, False, True)),
        ("qwen3", True, (True, True, True)),
    ],
)
def test_biases_and_norms(
    model_type: str, attention_bias: bool, expected: tuple[bool, bool, bool]
) -> None:
    backbone = read(LLAMA, model_type=model_type, attention_bias=attention_bias, mlp_bias=True)
    found = (backbone.attention_bias, backbone.attention_output_bias, backbone.qk_norm)
    assert found == expected
    assert backbone.mlp_bias == (model_type == "llama")


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        ({"rope_scaling": {}}, 1e4, None),
        ({"rope_scaling": {"type": "default"}}, 1e4, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 1e4, LinearRopeScaling(2.0)),
        ({"rope_scaling": LLAMA3}, 1e4, Llama3RopeScaling(8.0, 1.0, 4.0, 32)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}, 3.0, None),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 3}}, 3.0, Llama3RopeScaling(8, 1, 4, 32)),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_type": "default"}}, 7.0, None),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2},
                "rope_parameters": {"rope_type": "default"},
            },
            1e4,
            LinearRopeScaling(2.0),
        ),
        (
            {"rope_scaling": LLAMA3, "original_max_position_embeddings": 16},
            1e4,
            Llama3RopeScaling(8.0, 1.0, 4.0, 16),
        ),
    ],
)
def test_rope_in_both_spellings(changes: dict[str, Any], theta: float, scaling: object) -> None:
    backbone = read(LLAMA, **changes)
    assert (backbone.rope_theta, backbone.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope", "mrope", "su"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_other_rope_scaling_is_refused_by_name(key: str, kind: str) -> None:
    error = refusal(**{key: {"rope_type": kind, "factor": 2.0}})
    assert f"rope_type {kind!r}, which is not supported" in error.found and key in error.asked


@pytest.mark.parametrize(
    ("rope", "asked", "found"),
    [
        ({"rope_type": "linear"}, "rope_scaling.factor in", "no such key"),
        ({"rope_type": "linear", "factor": "2"}, "rope_scaling.factor in config.json: a n", "'2'"),
        ({"rope_type": "linear", "factor": 0}, "a number above 0", "0"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "a number above low_freq_factor = 1", "1.0"),
        ({**LLAMA3, "original_max_position_embeddings": 0}, "a length of 1 or more", "0"),
        ({"rope_type": 3}, "rope_scaling.rope_type in config.json: a string", "3"),
        (
            {"full_attention": {"rope_type": "default"}},
            "rope_scaling",
            "differ between layer types",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "a part of each head only"),
        ("linear", "rope_scaling in config.json: an object", "'linear'"),
    ],
)
def test_malformed_rope(rope: object, asked: str, found: str) -> None:
    error = refusal(rope_scaling=rope)
    assert asked in error.asked and found in error.found


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("quantization_config", {"quant_method": "gptq"}, "weights that are already quantized"),
        ("attn_logit_softcapping", 50.0, "soft-capped attention scores"),
        ("final_logit_softcapping", 30.0, "soft-capped logits"),
        ("partial_rotary_factor", 0.5, "rotation of a part of each head only"),
        ("num_experts", 8, "a mixture of experts"),
        ("num_local_experts", 8, "a mixture of experts"),
        ("logits_scaling", 8.0, "scaled logits"),
        ("embedding_multiplier", 12.0, "scaled embeddings"),
        ("residual_multiplier", 0.2, "scaled residuals"),
        ("attention_multiplier", 0.1, "its own attention scale"),
        ("enable_attn_sink_layerwise", [False, True], "attention sinks"),
        ("oe_grams", [2, 3], "over-encoding"),
        ("oe_vocab_sizes", [1000], "over-encoding"),
        ("prenorm_layer_idx", [0, 5], "norms after the sublayers"),
        ("prenorm_layer_idx", 0, "norms after the sublayers"),
        ("o_norm", True, "a norm of the attention output"),
        ("qk_rope_head_dim", 2, "rotation of a part of each head only"),
        ("num_nextn_predict_layers", 1, "layers that predict further tokens"),
        ("nextlat", {"proj_factor": 1.6}, "NextLat is read from its own layout"),
    ],
)
def test_setting_that_changes_the_numbers(key: str, value: object, found: str) -> None:
    error = refusal(**{key: value})
    assert found in error.found and f"a decoder with {key} = " in error.asked
    assert "wrong numbers silently" in error.fix


def test_settings_that_make_no_difference() -> None:
    harmless = {
        "pretraining_tp": 2,
        "quantization_config": None,
        "partial_rotary_factor": 1.0,
        "logits_scaling": 1,
        "num_experts": 0,
        "use_cache": False,
        "some_trainers_note": {"x": 1},
        "scale_seq_times": 0,
        "enable_attn_sink_layerwise": [False, False, False],
        "oe_grams": [],
        "prenorm_layer_idx": [],
        "num_nextn_predict_layers": 0,
        "qkv_bias": False,
    }
    assert read(LLAMA, **harmless) == BACKBONE


@pytest.mark.parametrize("key", ["qkv_proj_bias", "qkv_bias"])
def test_bias_that_the_architecture_lacks(key: str) -> None:
    error = refusal(model_type="qwen3", **{key: True})
    assert f"{key} = True" in error.asked and "qwen3 layers have no bias" in error.found
    assert read(LLAMA, model_type="qwen2", **{key: True}).attention_bias
    assert read(LLAMA, attention_bias=True, **{key: True}).attention_bias


def test_activation_other_than_silu() -> None:
    error = refusal(hidden_act="gelu")
    assert error.asked.endswith(": one of silu, swish") and error.found == "'gelu'"
    # Not to be "corrected": a model of GELU would run, with wrong numbers.
    assert "use a checkpoint" in error.fix and "correct" not in error.fix


@pytest.mark.parametrize("model_type", ["mamba", "mamba_scale_seq", "_scale_seq"])
def test_unknown_architecture_says_what_is_known_and_where_to_add(model_type: str) -> None:
    error = refusal(model_type=model_type)
    assert error.found == "quatrain knows llama, qwen2, qwen3, and each of them with _scale_seq"
    assert "exporter/checkpoint/backbone.py" in error.fix and repr(model_type) in error.asked


def test_welm_is_refused_by_name() -> None:
    error = refusal(model_type="welmv4_moe")
    assert "'welmv4_moe'" in error.asked and "llama, qwen2, qwen3" in error.fix
    for part in ("mixture of experts", "over-encoding", "gates", "sinks", "half-rotated heads"):
        assert part in error.found


def test_the_readme_names_what_is_refused_by_name(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert backbone._UNSUPPORTED and all(f"`{name}`" in text for name in backbone._UNSUPPORTED)


@pytest.mark.parametrize("base", ["llama", "qwen2", "qwen3"])
def test_hidden_decoding_has_the_backbone_of_its_base(base: str) -> None:
    config = {"model_type": base, **SIZES}
    assert read(config, model_type=f"{base}_scale_seq") == read(config)
    assert read(config).model_type == base


@pytest.mark.parametrize("key", [*SIZES, "model_type"])
def test_missing_key(key: str) -> None:
    error = refusal(**{key: None})
    assert key in error.asked and error.found == "no such key"


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("hidden_size", "16", "an integer"),
        ("num_hidden_layers", 2.0, "an integer"),
        ("vocab_size", True, "an integer"),
        ("rms_norm_eps", [1], "a number"),
        ("rms_norm_eps", float("nan"), "a finite number"),
        ("rms_norm_eps", 10**400, "a finite number"),
        ("rms_norm_eps", -1e-6, "a number of 0 or more"),
        ("rope_theta", 0, "a number above 0"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("attention_bias", 1, "true or false"),
        ("hidden_act", None, None),
        ("qkv_bias", 1, "true or false"),
        ("model_type", 3, "a string"),
    ],
)
def test_wrong_type(key: str, value: object, wanted: str | None) -> None:
    if wanted is None:  # null is the same as an absent key
        assert read(LLAMA, **{key: value}) == BACKBONE
        return
    error = refusal(**{key: value})
    assert error.asked == f"{key} in config.json: {wanted}"
    assert error.fix == f"correct {key} in config.json"


def test_hidden_size_that_heads_do_not_divide() -> None:
    error = refusal(num_attention_heads=3, num_key_value_heads=3)
    assert "a divisor of hidden_size = 16" in error.asked
    assert read(LLAMA, num_attention_heads=6, head_dim=8).head_dim == 8


@pytest.mark.parametrize(
    "changes", [{"num_key_value_heads": 3}, {"num_key_value_heads": 0}, {"head_dim": 5}]
)
def test_impossible_sizes(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        read(LLAMA, **changes)


def test_backbone_holds_plain_values() -> None:
    values = asdict(BACKBONE)
    assert values.pop("sliding_windows") == ()
    assert all(isinstance(v, str | int | float | bool | None) for v in values.values())
