"""The diagnosis, on bundles whose faults are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tests.exporter.checkpoint.folders import (
    BACKBONE as SMALL,
)
from tests.exporter.checkpoint.folders import (
    EXITS,
    NVIUM,
    Arrays,
    random_tensors,
    write_checkpoint,
    write_dense,
    write_settings,
)
from tests.exporter.diagnosis.bank_bundles import (
    BANK,
    INNER,
    LAYERS,
    VOCAB,
    export_banks,
    scramble,
    write_banks,
    write_text,
)
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from quatrain.exporter import diagnose_activations, export_checkpoint
from quatrain.exporter.diagnosis import ActivationReport, LayerReport
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress
from quatrain.exporter.spec import BankTopK, DecoderSpec
from quatrain.runtime import LLM, BundleError, RequestError, perplexity

IDS = np.random.default_rng(1).integers(0, VOCAB, 200)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All predictors are right."""
    return export_banks(tmp_path_factory.mktemp("right"))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The predictor of layer 1 is random."""
    return export_banks(tmp_path_factory.mktemp("wrong"), scramble(1))


def diagnose(bundle: Path, ids: Any = IDS, **options: Any) -> ActivationReport:
    return diagnose_activations(bundle, ids, threads=1, **options)


def recalls(report: ActivationReport) -> list[float]:
    found = [layer.use.recall for layer in report.layers if layer.use is not None]
    assert len(found) == LAYERS
    return [recall for recall in found if recall is not None]


def test_a_predictor_that_is_the_gate_finds_nearly_all(right: Path) -> None:
    report = diagnose(right)
    assert min(recalls(report)) > 0.9
    assert report.chance == 0.5


@pytest.mark.parametrize("top_k", [1, 4])
def test_a_random_predictor_finds_its_share(tmp_path: Path, top_k: int) -> None:
    report = diagnose(export_banks(tmp_path, scramble(0, 1, 2), top_k=top_k))
    assert recalls(report) == pytest.approx([top_k / BANK] * LAYERS, abs=0.12)


def test_the_layer_with_the_scrambled_predictor_is_suggested(right: Path, wrong: Path) -> None:
    ids = write_text(right, 301)
    report = diagnose(wrong, ids)
    found = recalls(report)
    assert found[1] < 0.65 < 0.9 < min(found[0], found[2])
    assert [(b.first, b.last, b.tokens) for b in report.buckets] == [
        (0, 127, 128),
        (128, 299, 172),
    ]
    assert report.suggestion is not None
    assert (report.best_layer, report.suggestion.layer) == (1, 1)
    assert report.suggestion.dense_fallback == "1"
    assert report.suggestion.perplexity_before == report.buckets[-1].perplexity
    assert report.suggestion.perplexity_after < 0.9 * report.suggestion.perplexity_before
    assert diagnose(right, ids).suggestion is None


def test_windows_are_as_long_as_the_bundle_allows(right: Path) -> None:
    ids = np.random.default_rng(0).integers(0, VOCAB, 500)
    report = diagnose(right, ids)
    assert (report.tokens, report.windows, report.window) == (499, 2, 320)
    assert [bucket.tokens for bucket in report.buckets] == [128 + 128, 192 + 51]
    assert [use_of(layer).rows for layer in report.layers] == [499] * LAYERS
    assert diagnose(right, ids, tokens=100).tokens == 100


def test_perplexity_is_that_of_the_runtime(right: Path) -> None:
    with LLM(right, backend="onnxruntime", threads=1) as llm:
        expected = perplexity(llm, IDS, window=len(IDS)).perplexity
    report = diagnose(right)
    assert report.perplexity == pytest.approx(expected, rel=1e-5)
    logs = [np.log(bucket.perplexity) * bucket.tokens for bucket in report.buckets]
    assert np.exp(sum(logs) / report.tokens) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"gate_mode": "sigmoid"},
        {"gate_mode": "sigmoid", "predictor_activation": "relu"},
        {"gate_mode": "hard"},
        {"gate_mode": "silu"},
        {"gate_mode": "silu", "predictor_rank": None},
    ],
    ids=str,
)
def test_a_layer_made_dense_is_as_an_export_with_its_fallback(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    change = None if settings.get("predictor_rank", 0) is None else scramble(0, 1, 2)
    checkpoint = write_banks(tmp_path / "checkpoint", change, top_k=1, **settings)
    export_checkpoint(checkpoint, tmp_path / "sparse", self_test=False)
    export_checkpoint(checkpoint, tmp_path / "dense", self_test=False, dense_fallback=[1])
    sparse, dense = diagnose(tmp_path / "sparse"), diagnose(tmp_path / "dense")
    repair = sparse.layers[1].repair
    assert repair is not None
    assert abs(np.log(repair.perplexity / sparse.perplexity)) > 1e-3
    assert repair.perplexity == pytest.approx(dense.perplexity, rel=1e-4)
    expected = [bucket.perplexity for bucket in dense.buckets]
    assert repair.bucket_perplexity == pytest.approx(expected, rel=1e-4)
    assert dense.layers[1] == LayerReport(1, True, None, None)
    assert not dense.layers[0].is_dense and dense.layers[0].use is not None


def test_a_suggestion_keeps_the_layers_that_are_dense_already(right: Path, tmp_path: Path) -> None:
    bundle = export_banks(tmp_path, scramble(1), dense_fallback_layers=[2])
    suggestion = diagnose(bundle, write_text(right, 301)).suggestion
    assert suggestion is not None
    assert (suggestion.layer, suggestion.dense_fallback) == (1, "1-2")


def test_a_bundle_that_is_all_dense_has_no_more_to_repair(tmp_path: Path) -> None:
    said: list[str] = []
    bundle = export_banks(tmp_path, dense_fallback_layers=[0, 1, 2])
    report = diagnose(bundle, progress=Progress(said.append))
    assert all(layer.is_dense for layer in report.layers)
    assert report.best_layer is report.suggestion is None
    assert said[0].startswith("pass 1 of 1 (as it is)")


def test_channels_that_are_always_and_never_used(tmp_path: Path) -> None:
    def zero(tensors: Arrays) -> None:
        for layer in range(LAYERS):
            tensors[f"model.layers.{layer}.mlp.predictor.1.weight"][:] = 0

    # All logits are equal, and equal ones go to the lowest index.
    for layer in diagnose(export_banks(tmp_path, zero)).layers:
        use = use_of(layer)
        assert (use.never_used, use.always_used, use.channels) == (INNER // 2, INNER // 2, INNER)
        assert use.usage_entropy == pytest.approx(np.log(INNER / 2) / np.log(INNER))


def test_without_a_predictor_there_is_usage_only(tmp_path: Path) -> None:
    report = diagnose(export_banks(tmp_path, predictor_rank=None))
    assert report.predictor_rank is None
    for layer in report.layers:
        use = use_of(layer)
        assert use.recall is use.bucket_recall is None
        assert 0.5 < use.usage_entropy <= 1
        assert layer.repair is not None


def test_exits(tmp_path: Path) -> None:
    spec = DecoderSpec(SMALL, feed_forward=BankTopK(8, 2, 4), exits=EXITS)
    banks = {"bank_size": 8, "top_k": 2, "predictor_rank": 4}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", random_tensors(spec), bank_topk=banks)
    write_settings(checkpoint / ".hydra" / "config.yaml", NVIUM)
    export_checkpoint(checkpoint, tmp_path / "sparse", self_test=False)
    export_checkpoint(checkpoint, tmp_path / "dense", self_test=False, dense_fallback=[1])
    sparse, dense = diagnose(tmp_path / "sparse"), diagnose(tmp_path / "dense")
    repair = sparse.layers[1].repair
    assert sparse.family == "bank_topk+nvium"
    assert repair is not None and repair.perplexity == pytest.approx(dense.perplexity, rel=1e-4)
    assert repair.perplexity != pytest.approx(sparse.perplexity, rel=1e-3)
    assert [use_of(layer).rows for layer in sparse.layers] == [199] * 3


def test_streams(tmp_path: Path) -> None:
    report = diagnose(export_banks(tmp_path, num_streams=3))
    # Of the last layer only the last stream is needed.
    assert [use_of(layer).rows for layer in report.layers] == [3 * 199, 3 * 199, 199]
    assert min(recalls(report)) > 0.9


def test_a_text_is_tokenized_as_the_bundle_says(tmp_path: Path) -> None:
    checkpoint = write_banks(tmp_path / "checkpoint")
    raw = tokenizers.Tokenizer(WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
    raw.pre_tokenizer = WhitespaceSplit()
    raw.save(str(checkpoint / "tokenizer.json"))
    export_checkpoint(checkpoint, tmp_path / "bundle", self_test=False)
    report = diagnose(tmp_path / "bundle", " ".join(map(str, IDS)))
    assert report == diagnose(tmp_path / "bundle")
    with pytest.raises(RequestError, match="a text of 2 tokens"):
        diagnose(tmp_path / "bundle", "3 4")


def test_progress_and_no_traces(right: Path) -> None:
    said: list[str] = []
    before = sorted(right.parent.iterdir())
    diagnose(right, progress=Progress(said.append))
    names = ["channels", "as it is", *(f"layer {layer} dense" for layer in range(LAYERS))]
    expected = [f"pass {i} of 5 ({name}): 0 of 199 tokens" for i, name in enumerate(names, 1)]
    starts = [line.partition(", about")[0] for line in said if ": 0 of" in line]
    assert starts == expected
    assert sorted(right.parent.iterdir()) == before


def test_what_cannot_be_diagnosed_is_refused(right: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"it is a checkpoint\nfix: +export it first"):
        diagnose(write_banks(tmp_path / "checkpoint"))
    export_checkpoint(write_dense(tmp_path / "dense"), tmp_path / "bundle", self_test=False)
    with pytest.raises(ExportError, match="a dense bundle: without banks"):
        diagnose(tmp_path / "bundle")
    with pytest.raises(BundleError, match=r"no readable manifest\.json"):
        diagnose(tmp_path / "nothing")
    with pytest.raises(RequestError, match="a text of 32 tokens"):
        diagnose(right, IDS[:32])
    with pytest.raises(RequestError, match="no tokenizer"):
        diagnose(right, "a text")
    with pytest.raises(RequestError, match="token id 48 "):
        diagnose(right, [48] * 50)
    with pytest.raises(RequestError, match="over 31 tokens"):
        diagnose(right, tokens=31)


def use_of(layer: LayerReport) -> Any:
    assert layer.use is not None
    return layer.use
