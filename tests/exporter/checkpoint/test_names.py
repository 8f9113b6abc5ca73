"""Expected names and shapes against the state dicts of transformers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.exporter.checkpoint.folders import BACKBONE, EXITS, GOLDEN_NVIUM, LLAMA
from transformers import AutoConfig, AutoModelForCausalLM

from quatrain.exporter.checkpoint.backbone import read_backbone
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.names import (
    expected_tensors,
    feed_forward_name,
    is_dynamics,
    is_predictor,
    stream_table_name,
)
from quatrain.exporter.checkpoint.safetensors_header import read_safetensors_header
from quatrain.exporter.spec import BankTopK, DecoderSpec, Drafter, DrafterKind, KVMirror, Streams


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True, "mlp_bias": True, "head_dim": 8},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 8},
        {"model_type": "qwen3", "head_dim": 6, "attention_bias": True},
    ],
)
def test_names_and_shapes_are_those_of_transformers(changes: dict[str, Any], tied: bool) -> None:
    config = {**LLAMA, **changes, "tie_word_embeddings": tied}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    stored = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if tied:
        del stored["lm_head.weight"]
    assert expected_tensors(DecoderSpec(read_backbone(Fields(config, "config.json")))) == stored


def test_nvium_names_and_shapes() -> None:
    dense = expected_tensors(DecoderSpec(BACKBONE))
    router = replace(EXITS.router, num_layers=2)
    exits = replace(EXITS, router=router, early_head="own", final_adapter_size=None)
    shapes = expected_tensors(DecoderSpec(BACKBONE, exits=exits))
    assert {name: shape for name, shape in shapes.items() if ".1." not in name} == {
        **{name: shape for name, shape in dense.items() if ".1." not in name},
        "early_norms.0.weight": (16,),
        "early_adapters.0.0.weight": (10, 16),
        "early_adapters.0.2.weight": (16, 10),
        "router_layers.0.layers.0.fc1.weight": (6, 16),
        "router_layers.0.layers.0.fc1.bias": (6,),
        "router_layers.0.layers.0.fc2.weight": (8, 6),
        "router_layers.0.layers.0.fc2.bias": (8,),
        "router_final_norms.0.weight": (8,),
        "router_heads.0.weight": (2, 8),
        "router_heads.0.bias": (2,),
        "early_lm_heads.0.weight": (48, 16),
    }
    assert shapes["router_layers.0.layers.1.fc1.weight"] == (6, 8)
    assert shapes["router_layers.1.layers.1.fc2.weight"] == (8, 6)


def test_streams_add_their_tables_after_the_first_one() -> None:
    streams = Streams(3, (True, False, False), (KVMirror(2, 0),))
    dense = expected_tensors(DecoderSpec(BACKBONE))
    shapes = expected_tensors(DecoderSpec(BACKBONE, streams=streams))
    names = [stream_table_name(stream) for stream in range(3)]
    assert names == [
        "model.embed_tokens.weight",
        "model.scale_seq_embed_tokens_list.0.weight",
        "model.scale_seq_embed_tokens_list.1.weight",
    ]
    assert list(shapes)[:3] == names
    # The layer that mirrors another one has projections of its own all the same.
    assert shapes == dense | dict.fromkeys(names[1:], (48, 16))


def test_every_layer_has_a_predictor_even_a_dense_one() -> None:
    dense = expected_tensors(DecoderSpec(BACKBONE))
    shapes = expected_tensors(
        DecoderSpec(BACKBONE, feed_forward=BankTopK(8, 2, 5, dense_fallback_layers=(1,)))
    )
    added = {name: shape for name, shape in shapes.items() if name not in dense}
    assert added == {
        f"model.layers.{layer}.mlp.predictor.{part}.weight": shape
        for layer in range(3)
        for part, shape in ((0, (5, 16)), (1, (24, 5)))
    }
    assert all(map(is_predictor, added)) and not any(map(is_predictor, dense))
    assert feed_forward_name(2, "predictor.1") in added
    after_the_fact = BankTopK(8, 2, None, "silu")
    assert expected_tensors(DecoderSpec(BACKBONE, feed_forward=after_the_fact)) == dense


def test_golden_nvium_has_exactly_the_expected_tensors() -> None:
    router = replace(EXITS.router, hidden_size=64, intermediate_size=22)
    exits = replace(EXITS, layers=(1, 2, 4), router=router, adapter_size=64, final_adapter_size=64)
    backbone = replace(
        BACKBONE,
        vocab_size=512,
        hidden_size=64,
        intermediate_size=88,
        num_hidden_layers=5,
        num_key_value_heads=4,
        head_dim=16,
    )
    stored = read_safetensors_header(GOLDEN_NVIUM / "model.safetensors")
    assert expected_tensors(DecoderSpec(backbone, exits=exits)) == {
        name: tensor.shape for name, tensor in stored.items()
    }


@pytest.mark.parametrize(
    ("kind", "added"),
    [
        (
            "glu_cross",
            {
                "lower_dynamics.w_h.weight": (16, 16),
                "lower_dynamics.w_e.weight": (16, 16),
                "lower_dynamics.gate.weight": (20, 16),
                "lower_dynamics.up.weight": (20, 16),
                "lower_dynamics.down.weight": (16, 20),
            },
        ),
        (
            "concat",
            {
                "lower_dynamics.gate.weight": (20, 32),
                "lower_dynamics.up.weight": (20, 32),
                "lower_dynamics.down.weight": (16, 20),
            },
        ),
        (
            "nextlat",
            {
                "dynamics_model.norm_x.weight": (32,),
                "dynamics_model.mlp.0.weight": (20, 32),
                "dynamics_model.mlp.2.weight": (20, 20),
                "dynamics_model.mlp.4.weight": (16, 20),
            },
        ),
    ],
)
def test_dynamics_come_on_top(kind: DrafterKind, added: dict[str, tuple[int, ...]]) -> None:
    dense = expected_tensors(DecoderSpec(BACKBONE))
    drafting = expected_tensors(DecoderSpec(BACKBONE, drafter=Drafter(kind, 20)))
    assert drafting == dense | added and len(drafting) == len(dense) + len(added)
    assert all(map(is_dynamics, added)) and not any(map(is_dynamics, dense))
