"""Opening bundles, and what ONNX Runtime is given to run."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from quatrain.runtime.errors import BundleError, EngineError, RequestError
from quatrain.runtime.manifest import MANIFEST_NAME, dump_manifest, load_manifest
from quatrain.runtime.session import Model, Sizes, open_model, run_graph


@pytest.fixture(scope="module")
def model(nvium_bundle: Path) -> Iterator[Model]:
    """The golden model."""
    with open_model(nvium_bundle, backend="onnxruntime", threads=1) as opened:
        yield opened


@pytest.fixture
def copied_bundle(nvium_bundle: Path, tmp_path: Path) -> Path:
    """A bundle to spoil."""
    shutil.copytree(nvium_bundle, tmp_path / "bundle")
    return tmp_path / "bundle"


def make_feeds(token: int, position: int, length: int) -> dict[str, NDArray[np.generic]]:
    return {
        "input_ids": np.array([[token]]),
        "position_ids": np.array([[position]]),
        "attention_mask": np.arange(length).reshape(1, 1, 1, -1) <= position,
        "write_indices": np.array([position]),
        "output_rows": np.array([[0]]),
    }


def test_auto_says_what_it_took_and_why(
    nvium_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"), open_model(nvium_bundle) as model:
        assert model.backend == "onnxruntime"
        assert model.reason == "it holds no engines"
    assert "ONNX Runtime (CPU): it holds no engines" in caplog.text


@pytest.mark.parametrize(
    ("backend", "exported", "tokens"),
    [
        ("onnxruntime", 512, 256),
        ("onnxruntime", 100, 100),
        ("tensorrt", 512, 512),
    ],
)
def test_prompts_run_in_calls_that_the_backend_is_good_at(
    model: Model, backend: Literal["onnxruntime", "tensorrt"], exported: int, tokens: int
) -> None:
    limits = msgspec.structs.replace(model.manifest.limits, prefill_chunk=exported)
    manifest = msgspec.structs.replace(model.manifest, limits=limits)

    assert Model(model.bundle, manifest, {}, backend, "test").prefill_chunk == tokens


def test_tensorrt_is_not_replaced_when_asked_for(nvium_bundle: Path) -> None:
    with pytest.raises(EngineError, match="it holds no engines"):
        open_model(nvium_bundle, backend="tensorrt")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [({"threads": 0}, "0 threads"), ({"backend": "cuda"}, "the backend 'cuda'")],
)
def test_bad_arguments(nvium_bundle: Path, arguments: dict[str, object], found: str) -> None:
    with pytest.raises(RequestError, match=found):
        open_model(nvium_bundle, **arguments)  # type: ignore[arg-type]


def test_every_graph_has_a_session(model: Model) -> None:
    assert list(model.sessions) == ["segment_0", "segment_1", "segment_2", "segment_3", "head"]
    assert model.manifest.vocab_size == 512


def test_a_cache_is_updated_in_place(model: Model) -> None:
    cache = model.allocate_cache(1)
    outputs = run_graph(model.sessions["segment_0"], make_feeds(3, 2, 5), cache)
    assert set(outputs) == {"updated_hidden", "router_logprobs", "exit_state"}
    keys = cache.tensors["key_cache.0"].array
    assert keys[:, :, 2].any()
    assert not keys[:, :, :2].any()
    assert not keys[:, :, 3:].any()


def test_buffers_are_reused_and_follow_the_sizes(model: Model) -> None:
    cache = model.allocate_cache(1)
    graph = model.sessions["segment_0"].bind(cache)
    for rows, length in ((1, 32), (5, 32), (1, 64), (5, 64), (1, 32)):
        cache.match(length)
        inputs = graph.prepare(Sizes(1, rows, length))
        assert inputs["attention_mask"].shape == (1, 1, rows, length)
        for name, array in inputs.items():
            array[...] = 1 if name == "attention_mask" else 0
        outputs = graph.execute()
        assert outputs["updated_hidden"].shape == (1, rows, 64)
        assert np.isfinite(outputs["updated_hidden"]).all()
        assert graph.prepare(Sizes(1, rows, length)) is inputs
        assert graph.execute()["exit_state"] is outputs["exit_state"]


def test_masked_length_changes_nothing(model: Model) -> None:
    session = model.sessions["segment_0"]
    found = [
        run_graph(session, make_feeds(3, 0, length), model.allocate_cache(1))["updated_hidden"]
        for length in (1, 32, 264)
    ]
    assert np.allclose(found[0], found[1], atol=1e-6)
    assert np.allclose(found[0], found[2], atol=1e-6)


def test_time_in_the_backend_adds_up(model: Model) -> None:
    before = model.busy_seconds
    run_graph(model.sessions["segment_0"], make_feeds(3, 0, 1), model.allocate_cache(1))
    assert 0 < model.busy_seconds - before < 1


def test_nothing_is_warned_about(nvium_bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open_model(nvium_bundle, backend="onnxruntime") as model:
        run_graph(model.sessions["segment_0"], make_feeds(3, 0, 1), model.allocate_cache(1))
    assert capfd.readouterr() == ("", "")


def test_a_closed_model_refuses(nvium_bundle: Path) -> None:
    model = open_model(nvium_bundle, backend="onnxruntime")
    session = model.sessions["head"]
    model.close()
    assert not model.sessions
    with pytest.raises(RuntimeError, match="closed"):
        session.bind()


def test_missing_weights(copied_bundle: Path) -> None:
    for path in copied_bundle.rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(BundleError, match="export the checkpoint again"):
        open_model(copied_bundle, backend="onnxruntime")


def test_a_damaged_graph(copied_bundle: Path) -> None:
    path = copied_bundle / load_manifest(copied_bundle).graph("segment_1").path
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BundleError, match="load "):
        open_model(copied_bundle, backend="onnxruntime")


def test_a_missing_graph(copied_bundle: Path) -> None:
    (copied_bundle / load_manifest(copied_bundle).graph("head").path).unlink()
    with pytest.raises(BundleError, match="load "):
        open_model(copied_bundle, backend="onnxruntime")


def test_a_graph_of_another_shape(copied_bundle: Path) -> None:
    manifest = load_manifest(copied_bundle)
    graphs = [
        msgspec.structs.replace(graph, path=manifest.graph("segment_1").path)
        if graph.name == "segment_0"
        else graph
        for graph in manifest.graphs
    ]
    manifest = msgspec.structs.replace(manifest, graphs=graphs)
    (copied_bundle / MANIFEST_NAME).write_bytes(dump_manifest(manifest))
    with pytest.raises(BundleError, match="not the one its manifest describes: hidden"):
        open_model(copied_bundle, backend="onnxruntime")
