"""`quatrain export --quantize`, from checkpoint to text."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quatrain.exporter.cli import main
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.quantization.groups import pack_nibbles, quantize
from quatrain.runtime import LLM, SamplingParams, perplexity
from quatrain.runtime.manifest import load_manifest

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "samples" / "checkpoints"
TEXT = (SAMPLES / "heldout.txt").read_text(encoding="utf-8")[:6000]


def test_a_quantized_bundle_is_smaller_whole_and_predicts_nearly_as_well(tmp_path):
    scores, sizes = {}, {}
    for kind in (None, "int8", "int4"):
        bundle = tmp_path / str(kind)
        export_checkpoint(SAMPLES / "topics-dense", bundle, weights="copy", quantize=kind)
        with LLM(bundle, self_test=True, threads=1) as llm:
            scores[kind] = perplexity(llm, TEXT).perplexity
        sizes[kind] = sum(f.stat().st_size for f in (bundle / "weights").iterdir())

    assert sizes["int4"] < sizes["int8"] < 0.8 * sizes[None]
    assert scores["int8"] == pytest.approx(scores[None], rel=0.01)
    assert scores["int4"] == pytest.approx(scores[None], rel=0.06)
    manifest = load_manifest(tmp_path / "int4")
    assert manifest.quantization is not None and manifest.quantization.kind == "int4"
    assert [record.path for record in manifest.files if record.path.startswith("weights")] == [
        "weights/model-int4.safetensors"
    ]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nvium", {}),
        ("hidden-decoding", {"embeddings": "host"}),
        ("bank-topk", {}),
        ("hilp", {"drafter": True}),
        ("nextlat", {"drafter": True}),
    ],
)
def test_every_family_generates_from_codes(name, options, tmp_path):
    bundle = tmp_path / "bundle"
    export_checkpoint(SAMPLES / f"topics-{name}", bundle, quantize="int8", **options)

    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(bundle, self_test=True, threads=1) as llm:
        tokens = llm.generate([[5, 6, 7], [9]], params)
        alone = llm.generate([[9]], params)

    assert [len(result.token_ids) for result in tokens] == [12, 12]
    # Rows are rounded to 8 bits each for itself, so a batch changes nothing.
    assert tokens[1].token_ids == alone[0].token_ids


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dense", {}),
        ("nvium", {}),
        ("hidden-decoding", {"embeddings": "host"}),
        ("bank-topk", {}),
        ("hilp", {"drafter": True}),
    ],
)
def test_the_gate_holds_graphs_to_the_rounded_weights(name, options, tmp_path):
    """The reference rounds the checkpoint's weights itself: nothing of the packed file is read."""
    bundle = tmp_path / "bundle"

    export_checkpoint(SAMPLES / f"topics-{name}", bundle, quantize="int4", verify=True, **options)

    verification = load_manifest(bundle).verification
    assert verification is not None and verification.status == "passed"
    assert verification.logits_error < 1e-4


@pytest.mark.parametrize("fault", ["nibbles", "scales"])
def test_the_gate_finds_a_fault_in_the_packed_file(fault, tmp_path, monkeypatch):
    def swap_nibbles(codes):
        packed = pack_nibbles(codes)
        return packed << 4 | packed >> 4

    module = "quatrain.exporter.quantization.packed_weights"
    if fault == "nibbles":
        monkeypatch.setattr(f"{module}.pack_nibbles", swap_nibbles)
    else:
        monkeypatch.setattr("quatrain.exporter.quantization.groups._CLIPS", {4: (0.5,), 8: (1.0,)})
        monkeypatch.setattr(
            "quatrain.exporter.quantization.restored.quantize", requantize_without_clips
        )

    with pytest.raises(ExportError, match="the graphs are not the checkpoint"):
        export_checkpoint(
            SAMPLES / "topics-dense", tmp_path / "bundle", quantize="int4", verify=True
        )
    assert not (tmp_path / "bundle").exists()


def requantize_without_clips(weight, bits, group_size, dtype):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quatrain.exporter.quantization.groups._CLIPS", {4: (1.0,), 8: (1.0,)})
        return quantize(weight, bits, group_size, dtype)


def test_a_drafter_of_a_quantized_model_changes_no_token(tmp_path):
    bundle = tmp_path / "bundle"
    export_checkpoint(SAMPLES / "topics-hilp", bundle, quantize="int4", drafter=True)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    with LLM(bundle, draft=0, threads=1) as plain, LLM(bundle, draft=3, threads=1) as drafted:
        prompts = [list(range(5, 30)), [7, 8, 9]]
        wanted = [result.token_ids for result in plain.generate(prompts, params)]
        assert [result.token_ids for result in drafted.generate(prompts, params)] == wanted


def test_bad_weights_and_contradictions_leave_nothing(tmp_path, capfd):
    source = str(SAMPLES / "topics-dense")
    output = tmp_path / "bundle"

    with pytest.raises(ExportError, match="codes are not in the checkpoint"):
        export_checkpoint(SAMPLES / "topics-dense", output, quantize="int4", weights="link")
    with pytest.raises(ExportError, match="choose one of 32, 128"):
        export_checkpoint(SAMPLES / "topics-dense", output, quantize="int4", group_size=7)
    with pytest.raises(ExportError, match="choose one of 4, 8, 16"):
        export_checkpoint(SAMPLES / "topics-dense", output, quantize="int4", head_bits=5)
    for setting in ({"group_size": 128}, {"head_bits": 4}):
        with pytest.raises(ExportError, match="weights are not quantized"):
            export_checkpoint(SAMPLES / "topics-dense", output, **setting)
    for kind in ("fp8", "fp4"):
        assert main(["export", source, "-o", str(output), "--quantize", kind]) == 1
        assert "no hardware for 8- or 4-bit floats" in capfd.readouterr().err
    assert main(["export", source, "-o", str(output), "--quantize", "int4", "--dry-run"]) == 0
    assert "int4" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.nan, r"up_proj.weight \(1 NaN, 0 Inf\)"),
        (np.inf, r"up_proj.weight \(0 NaN, 1 Inf\)"),
        (7e4, "has a weight of 7e\\+04, which is too large for float16"),
    ],
)
def test_weights_that_codes_cannot_stand_for_are_refused(weight, words, kind, tmp_path):
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "bundle"
    shutil.copytree(SAMPLES / "topics-dense", checkpoint)
    (file,) = checkpoint.glob("*.safetensors")
    tensors = {name: array.astype(np.float32) for name, array in load_file(file).items()}
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = weight
    save_file(tensors, file)

    with pytest.raises(ExportError, match=words):
        export_checkpoint(
            checkpoint, output, quantize=kind, dtype="float16", verify=False, self_test=False
        )
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_a_full_disk_leaves_nothing(tmp_path):
    """A limit on the size of files fails in the middle of the packed one."""
    script = (
        "import resource, signal, sys; from pathlib import Path;"
        " from quatrain.exporter.export import export_checkpoint;"
        " signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
        " export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), quantize='int4')"
    )
    source, output = str(SAMPLES / "topics-dense"), str(tmp_path / "bundle")
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, source, output], capture_output=True, text=True
    )

    assert "ExportError" in done.stderr and "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_plan_knows_the_size_beforehand(tmp_path, capfd):
    source, output = str(SAMPLES / "topics-dense"), tmp_path / "bundle"

    assert (
        main(["export", source, "-o", str(output), "--quantize", "int4", "--dry-run", "--json"])
        == 0
    )
    planned = json.loads(capfd.readouterr().out)
    export_checkpoint(SAMPLES / "topics-dense", output, quantize="int4", self_test=False)

    (file,) = (output / "weights").iterdir()
    header = int(np.fromfile(file, "<u8", 1)[0]) + 8
    assert planned["packed_bytes"] == file.stat().st_size - header
