"""Graphs over packed weights, run for real: the pattern is fused, and computes with the codes."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.checkpoint.lazy_tensor import NUMPY_DTYPES, SUPPORTED_DTYPES
from quatrain.exporter.decoder.graphs import build_graphs
from quatrain.exporter.errors import ExportError
from quatrain.exporter.graph_files import attach_weights
from quatrain.exporter.quantization import (
    Scheme,
    pack_weights,
    read_packed_weights,
)
from quatrain.exporter.quantization.groups import dequantize, quantize
from quatrain.exporter.quantization.scheme import Operand, choose_operands

SAMPLES = Path(__file__).parents[3] / "samples" / "checkpoints"


def write_graphs(folder: Path, name: str, scheme: Scheme):
    """The packed file and CPU graphs of a sample; and what was packed."""
    opened = open_checkpoint(SAMPLES / f"topics-{name}")
    (folder / "weights").mkdir()
    path = folder / "weights" / "model.safetensors"
    packed = pack_weights(opened, scheme, path, "bfloat16")
    stored = {n: SUPPORTED_DTYPES[t.dtype] for n, t in opened.tensors.items()}
    graphs = build_graphs(opened.spec, stored, "float32", 64, device="cpu", joined=packed.joined)
    counts = {}
    for built in graphs:
        counts[built.name] = read_packed_weights(built.model, packed.matrices, "float32", "weights")
        attach_weights(built.model.graph, packed.checkpoint.tensors)
        ir.save(built.model, folder / f"{built.name}.onnx")
    return opened, packed, counts


def open_graph(path: Path, optimized: Path, accuracy_level: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimized)
    options.log_severity_level = 3
    level = str(accuracy_level)
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def count_operators(path: Path) -> Counter[str]:
    graph = onnx.load(path, load_external_data=False).graph
    return Counter(node.op_type for node in graph.node)


@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("name", ["dense", "nvium", "hidden-decoding", "bank-topk"])
def test_every_product_with_codes_is_fused(name, kind, tmp_path):
    opened, packed, counts = write_graphs(tmp_path, name, Scheme(kind))

    layers = opened.spec.backbone.num_hidden_layers
    # Queries, keys and values; what leaves attention; gate and up; down.
    per_layer = 2 if name == "bank-topk" else 4
    apart = 1  # of the last layer, fewer rows attend than are attended to
    heads = 1 if kind == "int4" else 0
    assert sum(counts.values()) == layers * per_layer + apart + heads
    assert set(Counter(m.bits for m in packed.matrices.values())) <= {4, 8}
    for graph, count in counts.items():
        optimized = tmp_path / "optimized.onnx"
        open_graph(tmp_path / f"{graph}.onnx", optimized, 4)
        operators = count_operators(optimized)
        assert operators["MatMulNBits"] == count
        assert operators["DequantizeLinear"] == 0


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_the_graph_computes_with_what_the_codes_stand_for(kind, tmp_path):
    scheme = Scheme(kind)
    opened, packed, _ = write_graphs(tmp_path, "dense", scheme)
    restored = {
        name: dequantize(quantize(opened.tensors[name].read(), m.bits, 32, NUMPY_DTYPES["BF16"]))
        for m in packed.matrices.values()
        for name in m.names
    }
    plain = build_plain(opened, restored, tmp_path)

    inputs = make_inputs(plain)
    wanted = plain.run(["logits"], inputs)[0]
    path = tmp_path / "decoder.onnx"
    found = open_graph(path, tmp_path / "exact.onnx", 0).run(["logits"], inputs)[0]
    fast = open_graph(path, tmp_path / "fast.onnx", 4).run(["logits"], inputs)[0]

    largest = np.abs(wanted).max()
    assert np.abs(found - wanted).max() <= 1e-5 * largest
    # Level 4 also rounds what is multiplied with the codes to 8 bits.
    assert np.abs(fast - wanted).max() <= 0.1 * largest
    assert (fast.argmax(-1) == wanted.argmax(-1)).mean() > 0.8


def build_plain(opened, restored, folder: Path) -> onnxruntime.InferenceSession:
    """The CPU graph of float32 weights, those that were packed restored from their codes."""
    stored = dict.fromkeys(opened.tensors, "float32")
    (built,) = build_graphs(opened.spec, stored, "float32", 64, device="cpu")
    for name, value in built.model.graph.initializers.items():
        if value.const_value is None:
            array = restored.get(name, opened.tensors[name].read()).astype(np.float32)
            value.const_value = ir.tensor(np.ascontiguousarray(array), name=name)
    ir.save(built.model, folder / "plain.onnx")
    return onnxruntime.InferenceSession(folder / "plain.onnx", providers=["CPUExecutionProvider"])


def make_inputs(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    rows = 12
    inputs = {
        "input_ids": np.arange(3, 3 + rows)[None],
        "position_ids": np.arange(rows)[None],
        "attention_mask": np.tril(np.ones((1, 1, rows, rows), np.bool_)),
        "write_indices": np.zeros(1, np.int64),
        "output_rows": np.arange(rows)[None],
    }
    for info in session.get_inputs():
        if info.name not in inputs:
            inputs[info.name] = np.zeros((1, info.shape[1], rows, info.shape[3]), np.float32)
    return inputs


def test_the_file_holds_codes_for_what_was_packed_and_the_rest_as_it_was(tmp_path):
    opened, packed, _ = write_graphs(tmp_path, "dense", Scheme("int4"))

    assert "lm_head.weight" in packed.matrices and packed.matrices["lm_head.weight"].bits == 8
    names = {name for matrix in packed.matrices.values() for name in matrix.names}
    assert packed.checkpoint.tensors.keys() == opened.tensors.keys() - names
    for name, tensor in packed.checkpoint.tensors.items():
        assert tensor.file == tmp_path / "weights" / "model.safetensors"
        assert np.array_equal(tensor.read(), opened.tensors[name].read())
    size = (tmp_path / "weights" / "model.safetensors").stat().st_size
    assert size < 0.6 * sum(tensor.nbytes for tensor in opened.tensors.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "fp8"}, "no hardware for 8- or 4-bit floats"),
        ({"kind": "int4", "group_size": 64}, "choose one of 32, 128"),
        ({"kind": "int4", "head_bits": 2}, "choose one of 4, 8, 16"),
    ],
)
def test_what_no_target_runs_is_refused(arguments, words):
    with pytest.raises(ExportError, match=words):
        Scheme(**arguments)


def test_matrices_that_groups_do_not_divide_stay_as_they_are():
    opened = open_checkpoint(SAMPLES / "topics-dense")  # hidden size 96

    operands = choose_operands(opened.spec, opened.tensors, Scheme("int8", 128))

    names = [name for operand in operands for name in operand.names]
    assert names and not [name for name in names if opened.tensors[name].shape[1] % 128]
    assert "model.layers.0.self_attn.q_proj.weight" not in names


@pytest.mark.parametrize(("head_bits", "wanted"), [(None, 8), (4, 4), (8, 8), (16, None)])
def test_heads_get_the_bits_that_were_asked_for(head_bits, wanted):
    opened = open_checkpoint(SAMPLES / "topics-dense")

    operands = choose_operands(opened.spec, opened.tensors, Scheme("int4", 32, head_bits))

    bits = {name: operand.bits for operand in operands for name in operand.names}
    assert bits.get("lm_head.weight") == wanted
    assert bits["model.layers.0.mlp.up_proj.weight"] == 4


def test_an_operand_is_named_after_all_its_weights():
    names = [f"model.layers.3.mlp.{part}_proj.weight" for part in ("gate", "up")]

    assert Operand(tuple(names), 4).name == "model.layers.3.mlp.gate_proj+up_proj.weight"
    assert Operand((names[0],), 4).name == names[0]
