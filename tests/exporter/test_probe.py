"""Probed bundles: what enters each feed-forward network and the head, whatever the family."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.exporter.checkpoint.folders import GOLDEN

from quatrain.exporter import export_checkpoint, open_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.probe import HEAD_INPUT, probe_bundle, run_probe
from quatrain.runtime.bundle_check import verify_bundle
from quatrain.runtime.decoding.scoring import score_tokens
from quatrain.runtime.manifest import load_manifest

# Layers whose rows are all streams of a token, by golden checkpoint; the others run one row.
FAMILIES = {"nvium": set(), "hidden_decoding": {0, 1, 2}, "bank_topk": set()}
IDS = np.arange(14).reshape(2, 7) * 5


def collect(bundle: Path, **options: object) -> dict[int, np.ndarray]:
    with probe_bundle(bundle, **options) as model:  # type: ignore[arg-type]
        parts: dict[int, list[np.ndarray]] = {}
        for rows in run_probe(model, IDS):
            for layer, x in rows.inputs.items():
                parts.setdefault(layer, []).append(x.copy())
    return {layer: np.concatenate(pieces, axis=1) for layer, pieces in parts.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_are_the_normed_rows_of_every_layer(tmp_path: Path, family: str) -> None:
    source = open_checkpoint(GOLDEN / family / "checkpoint")
    bundle = tmp_path / "bundle"
    export_checkpoint(source.folder, bundle, prefill_chunk=5, self_test=False)
    found = collect(bundle)
    assert list(found) == list(range(source.spec.backbone.num_hidden_layers))
    for layer, x in found.items():
        num_rows = source.spec.num_streams if layer in FAMILIES[family] else 1
        assert x.shape == (2, 7 * num_rows, source.spec.backbone.hidden_size)
        # What an RMSNorm gives, taken by its own weight, has a mean square of 1.
        norm = source.tensors[f"model.layers.{layer}.post_attention_layernorm.weight"].read()
        squares = ((x / norm.astype(np.float32)) ** 2).mean(axis=-1)
        assert np.allclose(squares, 1, atol=1e-3), layer


def test_without_logits_or_in_one_chunk_they_are_the_same(tmp_path: Path) -> None:
    source = GOLDEN / "hidden_decoding" / "checkpoint"
    for name, chunk in (("chunks", 5), ("whole", 7)):
        export_checkpoint(source, tmp_path / name, prefill_chunk=chunk, self_test=False)
    expected = collect(tmp_path / "whole")
    for found in (collect(tmp_path / "chunks"), collect(tmp_path / "whole", logits=False)):
        assert found.keys() == expected.keys()
        for layer, x in expected.items():
            assert np.allclose(found[layer], x, atol=1e-4)


def test_the_bundle_is_left_alone_and_the_model_still_works(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    export_checkpoint(GOLDEN / "nvium" / "checkpoint", bundle, self_test=False)
    seen: list[onnx.ModelProto] = []
    with probe_bundle(bundle, [1], edit=seen.append) as model:
        assert model.bundle != bundle
        names = [info.name for graph in model.manifest.graphs for info in graph.outputs]
        assert [name for name in names if "ffn_input" in name] == ["ffn_input.1"]
        assert np.isfinite(score_tokens(model, IDS)).all()
    assert os.listdir(tmp_path) == ["bundle"]
    assert len(seen) == len([g for g in load_manifest(bundle).graphs if g.role != "head"])
    verify_bundle(bundle, load_manifest(bundle), full=True)


def test_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    export_checkpoint(GOLDEN / "nvium" / "checkpoint", bundle, self_test=False)
    with pytest.raises(ExportError, match=r"layers 99"), probe_bundle(bundle, [0, 99]):
        pass
    assert os.listdir(tmp_path) == ["bundle"]


@pytest.mark.parametrize("family", ["hidden_decoding", "bank_topk"])
def test_states_are_what_the_head_makes_logits_of(tmp_path: Path, family: str) -> None:
    source = open_checkpoint(GOLDEN / family / "checkpoint")
    export_checkpoint(source.folder, tmp_path / "bundle", prefill_chunk=5, self_test=False)
    is_tied = source.spec.backbone.tie_word_embeddings
    name = "model.embed_tokens.weight" if is_tied else "lm_head.weight"
    head = source.tensors[name].read().astype(np.float32)
    starts = []
    with probe_bundle(tmp_path / "bundle", (), states=True) as model:
        for rows in run_probe(model, IDS):
            states, logits = rows.outputs[HEAD_INPUT], rows.outputs["logits"]
            assert rows.inputs == {} and states.shape == (2, rows.num_tokens, head.shape[1])
            assert np.allclose(states @ head.T, logits, atol=1e-4)
            starts.append(rows.start)
    assert starts == [0, 5]


def test_states_of_a_model_with_exits_are_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    export_checkpoint(GOLDEN / "nvium" / "checkpoint", bundle, self_test=False)
    with pytest.raises(ExportError, match="what the head"), probe_bundle(bundle, states=True):
        pass
    assert os.listdir(tmp_path) == ["bundle"]
