"""Every kind of bundle is its checkpoint, in every type; what cannot be compared is said."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.exporter.comparison.bundles import GOLDEN, SAMPLES, export, find_checkpoint

from quatrain.exporter.comparison import Comparison, compare_bundle
from quatrain.exporter.comparison.tolerances import TOLERANCES
from quatrain.exporter.errors import ComparisonError
from quatrain.runtime.errors import BundleError, RequestError

Exported = Callable[[str], Path]


@pytest.fixture(scope="module")
def exported(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Bundles of checkpoints, by name, each exported once."""
    bundles: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in bundles:
            bundles[name] = export(root, name, tmp_path_factory.mktemp(name) / "bundle")
        return bundles[name]

    return get


def check_passed(comparison: Comparison) -> None:
    assert comparison.passed, [*comparison.failures, *comparison.divergences]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_checkpoint_is_its_graphs_layer_by_layer(
    root: Path, exported: Exported, name: str
) -> None:
    comparison = compare_bundle(
        exported(name), find_checkpoint(root, name), max_tokens=40, decode_steps=8, layers=True
    )
    check_passed(comparison)
    assert comparison.divergences == []
    tensors = {error.tensor for error in comparison.layer_errors}
    depth = sum(name.startswith("key_cache.") for name in tensors)
    parts = {f"layers.{layer}.{part}" for layer in range(depth) for part in ("attention", "output")}
    assert parts | {"embedding"} <= tensors
    assert max(error.relative for error in comparison.layer_errors) < 2e-5
    names = {check.name for check in comparison.checks}
    assert {"finite values", "top-1 agreement", "KL mean", "key caches", "greedy tokens"} <= names
    if name == "nvium":
        assert {"exits.0.logits", "exits.3.logits", "mixture_logprobs", "exit shares"} <= names
    elif name == "bank_topk":
        assert "active channels" in names
        assert set(comparison.plots.selection_overlap["fp32"]) == set(range(depth))
    elif name in ("hilp", "nextlat"):
        assert {"hidden", "draft.1.state", "draft.4.logits"} <= names


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_its_graphs_over_256_positions(
    root: Path, exported: Exported, name: str
) -> None:
    checkpoint = find_checkpoint(root, f"topics-{name}")
    comparison = compare_bundle(exported(f"topics-{name}"), checkpoint, max_tokens=256)
    check_passed(comparison)
    agreement = next(c for c in comparison.checks if c.name == "top-1 agreement")
    assert (agreement.value, agreement.tolerance) == (1.0, 1.0)
    assert max(max(case.lengths) for case in comparison.cases) == 256
    logits = next(c for c in comparison.checks if c.name.endswith("logits"))
    assert logits.tolerance == TOLERANCES["float32"].logits == 1e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_checkpoint_is_its_graphs_in_16_bits(
    root: Path, tmp_path: Path, name: str, dtype: str
) -> None:
    bundle = export(root, name, tmp_path / "bundle", dtype=dtype)
    checkpoint = find_checkpoint(root, name)
    comparison = compare_bundle(bundle, checkpoint, runners=["deployment"], max_tokens=40)
    check_passed(comparison)
    errors = [c.value for c in comparison.checks if c.name.endswith("logits")]
    assert max(error for error in errors if isinstance(error, float)) > 1e-5, "nothing was rounded"
    assert comparison.runners[0].dtype == dtype


@pytest.mark.parametrize("name", ["hidden_decoding_sfa", "hilp"])
def test_embeddings_on_the_host_are_compared_too(root: Path, tmp_path: Path, name: str) -> None:
    bundle = export(root, name, tmp_path / "bundle", embeddings="host")
    comparison = compare_bundle(
        bundle, find_checkpoint(root, name), runners=["fp32", "deployment"], max_tokens=32
    )
    check_passed(comparison)


def test_a_drafter_may_be_left_out(root: Path, tmp_path: Path) -> None:
    bundle = export(root, "hilp", tmp_path / "bundle", drafter=False)
    comparison = compare_bundle(bundle, find_checkpoint(root, "hilp"), max_tokens=16)
    check_passed(comparison)
    assert comparison.family == "dense"


def test_other_dense_layers_are_followed(root: Path, tmp_path: Path) -> None:
    bundle = export(root, "bank_topk", tmp_path / "bundle", dense_fallback=[1])
    comparison = compare_bundle(bundle, find_checkpoint(root, "bank_topk"), max_tokens=16)
    check_passed(comparison)
    assert 1 not in comparison.plots.selection_overlap["fp32"]


def test_what_is_not_there_is_skipped_and_counts_as_nothing(root: Path, exported: Exported) -> None:
    comparison = compare_bundle(
        exported("hilp"), find_checkpoint(root, "hilp"), runners=["tensorrt"], max_tokens=8
    )
    (runner,) = comparison.runners
    assert (runner.name, runner.status) == ("tensorrt", "skipped")
    assert runner.reason
    assert comparison.checks == []
    assert not comparison.passed


def test_one_token_after_the_other_up_to_the_limit(root: Path, tmp_path: Path) -> None:
    bundle = export(root, "hilp", tmp_path / "bundle", max_seq_len=12, max_batch=1, prefill_chunk=4)
    comparison = compare_bundle(bundle, find_checkpoint(root, "hilp"), decode_steps=16)
    check_passed(comparison)
    assert max(comparison.cases[0].lengths) == 12
    assert "last position" in next(c for c in comparison.cases if c.name == "whole").purpose


def test_a_comparison_survives_json(root: Path, exported: Exported) -> None:
    comparison = compare_bundle(
        exported("nvium"), find_checkpoint(root, "nvium"), max_tokens=12, layers=True
    )
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison
    assert len(comparison.plots.exit_shares["reference"]) == 4
    assert sum(comparison.plots.exit_shares["fp32"]) == pytest.approx(1, abs=1e-4)


def test_the_text_is_what_is_compared(root: Path, exported: Exported, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A river runs to the sea. " * 40)
    bundle, checkpoint = exported("topics-dense"), find_checkpoint(root, "topics-dense")
    comparison = compare_bundle(bundle, checkpoint, text=text, max_tokens=32)
    check_passed(comparison)
    text.write_text("A river.")
    with pytest.raises(RequestError, match="one chunk of a prompt is 32"):
        compare_bundle(bundle, checkpoint, text=text, max_tokens=32)
    with pytest.raises(RequestError, match="No such file"):
        compare_bundle(bundle, checkpoint, text=tmp_path / "none.txt")


def test_a_text_takes_a_tokenizer(root: Path, exported: Exported, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A river runs to the sea. " * 40)
    with pytest.raises(RequestError, match="has no tokenizer"):
        compare_bundle(exported("hilp"), find_checkpoint(root, "hilp"), text=text)


def test_bad_numbers_and_names_are_refused(root: Path, exported: Exported) -> None:
    bundle, checkpoint = exported("hilp"), find_checkpoint(root, "hilp")
    with pytest.raises(RequestError, match="over 1 tokens"):
        compare_bundle(bundle, checkpoint, max_tokens=1)
    with pytest.raises(ComparisonError, match="no number of steps"):
        compare_bundle(bundle, checkpoint, decode_steps=-1)
    with pytest.raises(ComparisonError, match="choose among fp32, deployment, cuda, tensorrt"):
        compare_bundle(bundle, checkpoint, runners=["gpu"])


def test_a_damaged_bundle_is_none(root: Path, exported: Exported, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(exported("hilp"), tmp_path / "bundle"))
    graph = bundle / "decoder.cpu.float32.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"decoder\.cpu\.float32\.onnx"):
        compare_bundle(bundle, find_checkpoint(root, "hilp"))


@pytest.mark.parametrize("name", ["topics-dense", "hilp", "nvium"])
@pytest.mark.parametrize("max_seq_len", [1, 2])
def test_the_shortest_bundles_there_are(
    root: Path, tmp_path: Path, name: str, max_seq_len: int
) -> None:
    bundle = export(root, name, tmp_path / "bundle", max_seq_len=max_seq_len)
    comparison = compare_bundle(bundle, find_checkpoint(root, name))
    check_passed(comparison)
    assert max(max(case.lengths) for case in comparison.cases) == max_seq_len


def test_a_text_of_one_token_over_and_over(root: Path, exported: Exported, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("<|endoftext|>" * 60)
    bundle, checkpoint = exported("topics-dense"), find_checkpoint(root, "topics-dense")
    check_passed(compare_bundle(bundle, checkpoint, text=text, max_tokens=24))
    text.write_text("")
    with pytest.raises(RequestError, match="one chunk of a prompt is 24"):
        compare_bundle(bundle, checkpoint, text=text, max_tokens=24)


def test_a_passage_that_is_no_tokens_is_replaced(
    root: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quatrain.exporter.comparison.prompt.read_passage", lambda: "")
    comparison = compare_bundle(
        exported("topics-dense"),
        find_checkpoint(root, "topics-dense"),
        runners=["fp32", "fp32"],
        max_tokens=16,
    )
    check_passed(comparison)
    assert len(comparison.runners) == 1


def test_other_weights_of_the_same_shapes(root: Path, exported: Exported, tmp_path: Path) -> None:
    other = Path(shutil.copytree(find_checkpoint(root, "hilp"), tmp_path / "other"))
    weights = other / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 0x40
    weights.write_bytes(data)
    with pytest.raises(ComparisonError, match="holds other weights"):
        compare_bundle(exported("hilp"), other, max_tokens=8)


def test_the_checkpoint_first_and_the_bundle_second(root: Path, exported: Exported) -> None:
    with pytest.raises(ComparisonError, match="the other way round"):
        compare_bundle(find_checkpoint(root, "hilp"), exported("hilp"))
