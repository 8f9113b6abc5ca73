"""What fits is arithmetic, so the tests do it again by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from quatrain.exporter.capacity import plan_capacity
from quatrain.exporter.capacity.fit import RESERVED_BYTES, fit_target, share_steps
from quatrain.exporter.capacity.model import load_planned, open_planned
from quatrain.exporter.capacity.needs import GraphNeeds, Needs, count_needs
from quatrain.exporter.cli import main
from quatrain.exporter.errors import BuildError, ExportError
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.targets import find_target
from quatrain.runtime.manifest import Limits

SAMPLES = Path(__file__).parents[3] / "samples" / "checkpoints"
GB = 10**9
LIMITS = Limits(max_seq_len=4088, max_batch=4, prefill_chunk=512, max_deferred=16)
# An 8B model in 16 bits: 36 layers of 8 heads of 128 keep 147,456 bytes a token.
LARGE = Needs(
    family="dense",
    dtype="bfloat16",
    limits=LIMITS,
    capacity=4096,
    weight_bytes=16 * GB,
    host_bytes=0,
    cache_bytes_per_token=147_456,
    activation_bytes=GB // 4,
    graphs=[GraphNeeds("decoder", "decoder", 16 * GB, 15 * GB, 0, 147_456)],
)


def fit_3090(needs: Needs, **shares):
    target = find_target("rtx3090")
    return fit_target(needs, target, target.memory[0], share_steps(needs, **shares))


def test_what_fits_is_what_adds_up_to_less_than_the_memory():
    fit = fit_3090(LARGE)
    room = (24 << 30) - 16 * GB - GB // 4 - RESERVED_BYTES

    assert fit.needed_bytes == 16 * GB + GB // 4 + RESERVED_BYTES + 147_456 * 4096 * 4
    assert fit.fits
    assert fit.max_seq_len_alone == room // 147_456
    assert fit.max_batch == room // (147_456 * 4096) == 14
    longer = replace(LARGE, capacity=16 * 1024)
    assert not fit_3090(longer).fits and fit_3090(longer).max_batch == 3


def test_weights_without_room_leave_no_tokens():
    fit = fit_3090(replace(LARGE, weight_bytes=30 * GB))

    assert not fit.fits
    assert fit.max_seq_len_alone == fit.max_seq_len_in_batch == fit.max_batch == 0


def test_the_floor_is_what_is_read_over_the_bandwidth():
    fit = fit_3090(LARGE)

    assert fit.floor_ms_short == pytest.approx((15 * GB + 128 * 147_456) / 936e6)
    assert fit.floor_ms_limit == pytest.approx((15 * GB + 4088 * 147_456) / 936e6)
    assert fit.floor_ms_sparse is None


def test_channels_that_are_not_active_need_not_be_read():
    banks = replace(LARGE, graphs=[replace(LARGE.graphs[0], inactive_bytes=7 * GB)])
    fit = fit_3090(banks)

    assert fit.floor_ms_sparse == pytest.approx((8 * GB + 128 * 147_456) / 936e6)


def test_a_segment_is_read_as_often_as_tokens_get_there():
    parts = [GraphNeeds(f"segment_{k}", "segment", GB, GB, 0, 1000) for k in range(3)]
    needs = replace(LARGE, graphs=[*parts, GraphNeeds("head", "head", GB, GB, 0, 0)])

    whole = fit_3090(needs).floor_ms_short
    shared = fit_3090(needs, exit_shares=(0.5, 0.3, 0.2)).floor_ms_short

    assert whole == pytest.approx((4 * GB + 3 * 128_000) / 936e6)
    assert shared == pytest.approx((GB * (1 + 0.5 + 0.2 + 1) + 128_000 * 1.7) / 936e6)


def test_a_round_reads_the_decoder_once_for_all_its_tokens():
    drafter = GraphNeeds("drafter", "drafter", GB, GB, 0, 0)
    needs = replace(LARGE, graphs=[*LARGE.graphs, drafter])

    fit = fit_3090(needs, draft=3, accepted_per_step=2.5)

    assert fit.floor_ms_short == pytest.approx((15 * GB + 128 * 147_456 + 3 * GB) / 2.5 / 936e6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dense", {}),
        ("nvium", {}),
        ("bank-topk", {"dense_fallback": [1]}),
        ("hidden-decoding", {"embeddings": "host"}),
        ("hilp", {"drafter": True}),
        ("hilp", {"drafter": True, "quantize": "int4"}),
        ("nvium", {"quantize": "int8"}),
    ],
)
def test_a_checkpoint_needs_what_its_bundle_will(name, options, tmp_path):
    checkpoint, bundle = SAMPLES / f"topics-{name}", tmp_path / "bundle"
    export_checkpoint(checkpoint, bundle, self_test=False, max_batch=2, **options)

    planned = count_needs(open_planned(checkpoint, max_batch=2, **options))

    assert planned == count_needs(load_planned(bundle))
    graphs = sorted(bundle.glob("*.engine.*.onnx"))
    protos = [onnx.load(path, load_external_data=False).graph for path in graphs]
    tensors = [t for g in protos for t in g.initializer if t.external_data]
    halves = {onnx.TensorProto.INT4: 1, onnx.TensorProto.INT8: 2}  # of a byte, else 2 bytes
    sizes = [np.prod(t.dims) * halves.get(t.data_type, 4) / 2 for t in tensors]
    assert planned.weight_bytes == sum(sizes)


def test_the_command_says_what_would_fit(capfd):
    checkpoint = str(SAMPLES / "topics-dense")

    assert main(["plan", checkpoint, "--target", "rtx3090", "a100", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [fit["memory_gib"] for fit in document["fits"]] == [24, 40, 80]
    assert document["needs"]["limits"]["max_batch"] == 4

    words = ["plan", checkpoint, "--target", "rtx3090", "--max-batch"]
    assert main([*words, "9000", "--prefill-chunk", "1"]) == 1
    told = capfd.readouterr()
    assert "no room for 9000 sequences of 1024" in told.err
    assert " no " in told.out
    assert main([*words, "40000"]) == 1
    assert "activations of 40000 x 512 tokens" in capfd.readouterr().err


def test_a_bundle_is_planned_as_it_was_exported(tmp_path, capfd):
    bundle = tmp_path / "bundle"
    export_checkpoint(SAMPLES / "topics-nvium", bundle, self_test=False)

    assert main(["plan", str(bundle), "--exit-shares", "0.2", "0.3", "0.3", "0.2"]) == 0
    assert "a6000" in capfd.readouterr().out
    assert main(["plan", str(bundle), "--max-seq-len", "64"]) == 1
    assert "--max-seq-len" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("dense", {"exit_shares": [1.0]}, "has no exits"),
        ("nvium", {"exit_shares": [0.5, 0.5]}, "4 exits"),
        ("nvium", {"exit_shares": [0.5, 0.5, 0.5, 0.5]}, "add up to 1"),
        ("dense", {"draft": 2, "accepted_per_step": 1.5}, "has no drafter"),
        ("hilp", {"draft": 2, "accepted_per_step": 3.5}, "at most one more"),
        ("hilp", {"draft": 0, "accepted_per_step": 1.5}, "at most one more"),
    ],
)
def test_expectations_that_do_not_go_with_the_model_are_refused(name, arguments, words):
    planned = open_planned(SAMPLES / f"topics-{name}", drafter=name == "hilp")

    with pytest.raises(ExportError, match=words):
        plan_capacity(planned, **arguments)


def test_an_unknown_target_is_refused():
    with pytest.raises(BuildError, match="h100"):
        plan_capacity(open_planned(SAMPLES / "topics-dense"), ["h100"])
