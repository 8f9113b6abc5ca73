"""What fits is arithmetic, so the tests do it again by hand."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.exporter.checkpoint.folders import write_dense

from quatrain.exporter.capacity import fit, plan_capacity
from quatrain.exporter.capacity.fit import RESERVED_BYTES, fit_target, share_steps
from quatrain.exporter.capacity.model import load_planned, open_planned
from quatrain.exporter.capacity.needs import ActivationNeeds, GraphNeeds, Needs, count_needs
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
    quantized=None,
    limits=LIMITS,
    capacity=4096,
    positions=1 << 20,
    longest=1 << 20,
    weight_bytes=16 * GB,
    host_bytes=0,
    cache_bytes_per_token=147_456,
    activation_bytes=4 * (512 * (100_000 + 4088) + 600_000),
    activations=ActivationNeeds(token_bytes=100_000, mask_bytes=1, output_bytes=600_000),
    graphs=[GraphNeeds("decoder", "decoder", 16 * GB, 15 * GB, 0, 147_456)],
)


def fit_3090(needs: Needs, **shares):
    target = find_target("rtx3090")
    return fit_target(needs, target, target.memory[0], share_steps(needs, **shares))


def test_what_fits_is_what_adds_up_to_less_than_the_memory():
    found = fit_3090(LARGE)
    room = (24 << 30) - 16 * GB - RESERVED_BYTES
    activations = 512 * (100_000 + 4088) + 600_000

    assert found.needed_bytes == 16 * GB + RESERVED_BYTES + 4 * (147_456 * 4096 + activations)
    assert found.fits
    # Each sequence more needs activations of its own.
    assert found.max_batch == room // (147_456 * 4096 + activations) == 13


def test_the_longest_sequence_is_the_last_whose_export_would_fit():
    found, total = fit_3090(LARGE), 24 << 30

    for batch, longest in ((1, found.max_seq_len_alone), (4, found.max_seq_len_in_batch)):
        for length, has_room in ((longest, True), (longest + 1, False)):
            caches = 147_456 * ((length + 8) // 8 * 8)  # a token of padding at least
            activations = 512 * (100_000 + length) + 600_000
            # Engines are built for batches of 2 at least.
            needed = 16 * GB + RESERVED_BYTES + batch * caches + max(2, batch) * activations
            assert (needed <= total) is has_room


def test_a_sequence_is_no_longer_than_the_model_has_positions(capfd):
    assert fit_3090(replace(LARGE, longest=8192)).max_seq_len_alone == 8192
    assert fit_3090(replace(LARGE, longest=4096)).max_seq_len_in_batch == 4096

    assert main(["plan", str(SAMPLES / "topics-dense"), "--target", "a6000", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    [found] = document["fits"]
    assert document["needs"]["positions"] == document["needs"]["longest"] == 1024
    assert found["max_seq_len_alone"] == found["max_seq_len_in_batch"] == 1024
    assert main(["plan", str(SAMPLES / "topics-dense"), "--target", "a6000"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("1,024 (all)") == 2 and "(all: the model has no more positions)" in shown


def test_a_sequence_is_no_longer_than_an_export_makes_it(tmp_path, capfd):
    """Positions that one ONNX file cannot hold the rotary tables of, which export refuses."""
    checkpoint = write_dense(tmp_path / "c", max_position_embeddings=10**12)
    assert main(["plan", str(checkpoint), "--target", "a100", "--json"]) == 0
    needs = json.loads(capfd.readouterr().out)["needs"]
    assert (needs["positions"], needs["longest"]) == (10**12, 125_000_000)


def test_weights_without_room_leave_no_tokens():
    found = fit_3090(replace(LARGE, weight_bytes=30 * GB))

    assert not found.fits
    assert found.max_seq_len_alone == found.max_seq_len_in_batch == found.max_batch == 0


def test_the_floor_is_what_is_read_over_the_bandwidth():
    found = fit_3090(LARGE)

    assert found.floor_ms_short == pytest.approx((15 * GB + 128 * 147_456) / 936e6)
    assert found.floor_ms_limit == pytest.approx((15 * GB + 4088 * 147_456) / 936e6)
    assert found.floor_ms_sparse is None


def test_channels_that_are_not_active_need_not_be_read():
    banks = replace(LARGE, graphs=[replace(LARGE.graphs[0], inactive_bytes=7 * GB)])
    found = fit_3090(banks)

    assert found.floor_ms_sparse == pytest.approx((8 * GB + 128 * 147_456) / 936e6)


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

    found = fit_3090(needs, draft=3, accepted_per_step=2.5)

    assert found.floor_ms_short == pytest.approx((15 * GB + 128 * 147_456 + 3 * GB) / 2.5 / 936e6)


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


@pytest.mark.parametrize("chunk", ["1", "512"])
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("dense", []),
        ("nvium", []),
        ("hidden-decoding", ["--embeddings", "host"]),
        ("hilp", ["--drafter"]),
    ],
)
def test_what_is_advised_fits(name, flags, chunk, capfd):
    words = ["plan", str(SAMPLES / f"topics-{name}"), "--target", "rtx3090", "--prefill-chunk"]
    words += [chunk, *flags]
    assert main([*words, "--max-batch", "30000"]) == 1

    found = dict(re.findall(r"(--max-\S+) (\d+)", capfd.readouterr().err))

    if "--max-seq-len" in found:  # not where it would be too short to be of use
        batch = ["--max-batch", "30000"]
        assert main([*words, *batch, "--max-seq-len", found["--max-seq-len"]]) == 0
    assert main([*words, "--max-batch", found["--max-batch"]]) == 0
    assert main([*words, "--max-batch", str(int(found["--max-batch"]) + 1)]) == 1


def test_weights_without_room_are_told_what_makes_them_small_enough(monkeypatch, capfd):
    """A GPU with 1.9 MB for a model with 2.2 MB of weights, of which codes would take 0.8."""
    monkeypatch.setattr(fit, "RESERVED_BYTES", (24 << 30) - 1_900_000)
    words = ["plan", str(SAMPLES / "topics-dense"), "--target", "rtx3090", "rtx3090"]

    assert main([*words, "--max-batch", "1", "--max-seq-len", "16"]) == 1
    (advice,) = [line for line in capfd.readouterr().err.splitlines() if "no room" in line]
    assert "no room for the weights" in advice
    remedy = advice.rpartition("export with ")[2].split()
    assert remedy[0] in ("--quantize", "--embeddings")
    assert main([*words, "--max-batch", "1", "--max-seq-len", "16", *remedy]) == 0

    monkeypatch.setattr(fit, "RESERVED_BYTES", 24 << 30)
    assert main(words) == 1
    assert "take a larger GPU" in capfd.readouterr().err


def test_a_bundle_is_planned_as_it_was_exported(tmp_path, capfd):
    bundle = tmp_path / "bundle"
    export_checkpoint(SAMPLES / "topics-nvium", bundle, self_test=False)

    assert main(["plan", str(bundle), "--exit-shares", "0.2", "0.3", "0.3", "0.2"]) == 0
    assert "a6000" in capfd.readouterr().out
    # What the export had by default is no less settled than other sizes.
    for flag, value in (("--max-seq-len", "64"), ("--max-batch", "4"), ("--max-deferred", "16")):
        assert main(["plan", str(bundle), flag, value]) == 1
        assert f"with {flag}\n" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("dense", {"exit_shares": [1.0]}, "has no exits"),
        ("nvium", {"exit_shares": [0.5, 0.5]}, "4 exits"),
        ("nvium", {"exit_shares": [0.5, 0.5, 0.5, 0.5]}, "add up to 1"),
        ("dense", {"draft": 2, "accepted_per_step": 1.5}, "has no drafter"),
        ("hilp", {"draft": 2, "accepted_per_step": 3.5}, "at most one more"),
        ("hilp", {"draft": 0, "accepted_per_step": 1.5}, "drafts 1 to 8"),
        ("hilp", {"draft": 9, "accepted_per_step": 1.5}, "drafts 1 to 8"),
        ("hilp", {"draft": 2, "accepted_per_step": math.nan}, "at most one more"),
        ("hilp", {"draft": 2, "accepted_per_step": math.inf}, "at most one more"),
        ("nvium", {"exit_shares": [0.5, 0.5, 0.5, -0.5]}, "add up to 1"),
        ("nvium", {"exit_shares": [0.5, math.nan, 0.5, 0]}, "add up to 1"),
        ("nvium", {"exit_shares": []}, "4 exits"),
    ],
)
def test_expectations_that_do_not_go_with_the_model_are_refused(name, arguments, words):
    planned = open_planned(SAMPLES / f"topics-{name}", drafter=name == "hilp")

    with pytest.raises(ExportError, match=words):
        plan_capacity(planned, **arguments)


def test_a_drafter_that_is_left_out_is_not_called_absent(tmp_path, capfd):
    words = ["--draft", "4", "--accepted-per-step", "3"]

    assert main(["plan", str(SAMPLES / "topics-hilp"), *words]) == 1
    told = capfd.readouterr().err
    assert "the checkpoint has a drafter, and it is left out" in told and "add --drafter" in told
    assert main(["plan", str(SAMPLES / "topics-hilp"), *words, "--drafter"]) == 0
    assert main(["plan", str(SAMPLES / "topics-dense"), *words]) == 1
    assert "this model (dense) has no drafter" in capfd.readouterr().err
    export_checkpoint(SAMPLES / "topics-hilp", tmp_path / "b", self_test=False, verify=False)
    assert main(["plan", str(tmp_path / "b"), *words]) == 1
    assert "this model (dense) has no drafter" in capfd.readouterr().err


def test_the_short_floor_is_no_longer_than_the_model_takes():
    found = fit_3090(
        replace(
            LARGE,
            limits=Limits(max_seq_len=64, max_batch=4, prefill_chunk=64, max_deferred=16),
            capacity=72,
        )
    )

    assert found.floor_ms_short == found.floor_ms_limit


def test_a_damaged_bundle_is_refused_by_name(tmp_path, capfd):
    bundle = tmp_path / "bundle"
    export_checkpoint(SAMPLES / "topics-dense", bundle, self_test=False, verify=False)
    for damage in ("changed", "missing"):
        for graph in bundle.glob("*.onnx"):
            graph.write_bytes(b"junk") if damage == "changed" else graph.unlink()
        for command in ("plan", "bench"):
            assert main([command, str(bundle)]) == 1
            told = capfd.readouterr()
            assert "the bundle file" in told.err and told.out == ""


def test_an_unknown_target_is_refused():
    with pytest.raises(BuildError, match="h100"):
        plan_capacity(open_planned(SAMPLES / "topics-dense"), ["h100"])
