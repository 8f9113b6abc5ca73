"""The TensorRT session: on a stand-in everywhere, on the engine itself where there is a GPU."""

import gc
import shutil
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.runtime.embedded_bundle import write_bundle
from tests.runtime.fake_tensorrt import FakeDevice, FakeEngine

from quatrain.exporter import build_engines, export_checkpoint
from quatrain.exporter.engine.profiles import plan_profiles
from quatrain.exporter.targets import TARGETS
from quatrain.runtime import tensorrt_session
from quatrain.runtime.cuda_device import CudaDevice, DeviceMemory
from quatrain.runtime.decoding import ArgmaxRouting, PiggybackDecoder, PlainDecoder, score_exits
from quatrain.runtime.errors import EngineError, RequestError
from quatrain.runtime.manifest import Engine, Manifest, load_manifest
from quatrain.runtime.session import Model, Sizes, open_model
from quatrain.runtime.tensorrt_session import TensorRTSession


@pytest.fixture
def device() -> FakeDevice:
    """A GPU of 1 GiB."""
    return FakeDevice()


def open_on_stand_in(bundle: Path, device: FakeDevice) -> Model:
    """A bundle exported for fp32 engines, with the profiles that engines are built with."""
    manifest = load_manifest(bundle)
    sessions = {}
    for graph in manifest.graphs:
        profiles = plan_profiles(graph, manifest)
        engine = FakeEngine(bundle, graph.deployment, profiles, device)
        sessions[graph.name] = TensorRTSession(engine, graph.deployment, profiles, device)
    allocate = partial(DeviceMemory, device)
    return Model(bundle, manifest, sessions, "tensorrt", "a test", allocate)


@pytest.fixture(scope="module")
def float32_bundle(nvium_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden checkpoint for engines that compute as the stand-in does."""
    bundle = tmp_path_factory.mktemp("float32") / "bundle"
    export_checkpoint(nvium_checkpoint, bundle, dtype="float32", weights="copy", self_test=False)
    return bundle


@pytest.fixture
def model(float32_bundle: Path, device: FakeDevice) -> Model:
    """The golden model."""
    return open_on_stand_in(float32_bundle, device)


def load_golden(root: Path) -> dict[str, np.ndarray]:
    with np.load(root / "tests" / "golden" / "nvium" / "golden.npz") as arrays:
        return dict(arrays)


def test_piggyback_decoding_is_golden(model: Model, root: Path) -> None:
    """With every call inside the profiles, and both of them used."""
    golden = load_golden(root)
    decoder = PiggybackDecoder(model, 2, [ArgmaxRouting()] * 2, model.manifest.limits.max_deferred)
    out = decoder.feed([golden["prompt_ids"][0].tolist(), golden["input_ids"][0, :31].tolist()])
    tokens, exits = [], []
    for _ in range(64):
        token = out.logits.argmax(-1)
        tokens.append(token[0])
        exits.append(out.exits[0])
        out = decoder.feed([[int(t)] for t in token])
    assert tokens == golden["generated_ids"].tolist()
    assert exits == golden["generated_exit"].tolist()
    contexts = model.sessions["segment_1"]._engine.contexts
    assert sorted(context.profile for context in contexts) == [0, 1]
    assert model.busy_seconds > 0


def test_scores_are_golden(model: Model, root: Path) -> None:
    golden = load_golden(root)
    found = score_exits(model, golden["input_ids"]).exit_logits
    assert np.abs(found - golden["exit_logits"]).max() <= 1e-4 * np.abs(golden["exit_logits"]).max()


def test_tokens_of_several_rows_with_embeddings_on_the_host(
    tmp_path: Path, device: FakeDevice
) -> None:
    """Inside the profiles, and into caches that hold a position for every row."""
    table = write_bundle(tmp_path / "bundle", "float16")
    model = open_on_stand_in(tmp_path / "bundle", device)
    decoder = PlainDecoder(model, 2)
    for tokens in ([[*range(12)] * 2, [3]], [[1], [2]], [[], [9]]):
        out = decoder.feed(tokens)
        for b, row in enumerate(tokens):
            if row:
                assert (out.logits[b] == table[row[-1]]).all()
    keys = decoder.cache.tensors["key_cache.0"]
    assert keys.shape == (2, 1, 120, 4)
    cache = device.blocks[keys.block.address].view(np.float32).reshape(keys.shape)
    assert (cache[1, 0, :9] == table[[3, 2, 9]].reshape(9, 4)).all()


def test_decoders_that_take_turns_keep_their_caches(model: Model, root: Path) -> None:
    """They share an execution context, whose addresses are set anew at each turn."""
    golden = load_golden(root)
    decoders = [PiggybackDecoder(model, 1, [ArgmaxRouting()]) for _ in range(2)]
    for t in range(12):
        for b, decoder in enumerate(decoders):
            out = decoder.feed([golden["input_ids"][b, t : t + 1].tolist()])
            expected = golden["exit_logits"][out.exits[0], b, t]
            assert np.abs(out.logits[0] - expected).max() <= 1e-4 * np.abs(expected).max()


def test_a_dropped_decoder_gives_its_memory_back(model: Model, device: FakeDevice) -> None:
    before = len(device.blocks)
    decoder = PiggybackDecoder(model, 1, [ArgmaxRouting()])
    decoder.feed([[1, 2, 3]])
    assert len(device.blocks) > before
    del decoder
    gc.collect()
    assert len(device.blocks) == before


def test_what_no_profile_allows_is_refused(model: Model) -> None:
    graph = model.sessions["segment_0"].bind(model.allocate_cache(1))
    with pytest.raises(RequestError, match=r"prefill: input_ids \[1, 300\] is outside"):
        graph.prepare(Sizes(1, 300, 264))
    inputs = graph.prepare(Sizes(1, 1, 32))
    for array in inputs.values():
        array[...] = 0
    assert np.isfinite(graph.execute()["updated_hidden"]).all()


def test_too_little_device_memory(model: Model, device: FakeDevice) -> None:
    device.num_free_bytes = 1000
    with pytest.raises(RequestError, match="no memory for key_cache"):
        model.allocate_cache(1)


def test_a_closed_model_refuses(model: Model) -> None:
    graph = model.sessions["head"].bind()
    graph.prepare(Sizes(1))
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        graph.execute()


def describe_engine(manifest: Manifest) -> Engine:
    graph = manifest.graph("head")
    return Engine(
        graph="head",
        target="a6000",
        sm="8.6",
        flavour="tensorrt-rtx",
        version="1.7",
        path="engines/head.engine",
        bytes=3,
        build_seconds=1.0,
        profiles=plan_profiles(graph, manifest),
        plugins={},
        vendor_supported=True,
    )


class FakeRuntime:
    """Deserializes to whatever it was made with."""

    def __init__(self, engine: FakeEngine | None) -> None:
        self.engine = engine

    def deserialize_cuda_engine(self, data: bytes) -> FakeEngine | None:
        return self.engine


def test_engines_that_do_not_load(nvium_bundle: Path, tmp_path: Path, device: FakeDevice) -> None:
    manifest = load_manifest(nvium_bundle)
    engine = describe_engine(manifest)
    graph = manifest.graph("head")
    load = partial(tensorrt_session._load_engine, bundle=tmp_path, engine=engine)
    with pytest.raises(EngineError, match=r"cannot be read.*\n.*--target a6000"):
        load(FakeRuntime(None), graph=graph.deployment)
    (tmp_path / "engines").mkdir()
    (tmp_path / engine.path).write_bytes(b"abc")
    with pytest.raises(EngineError, match="TensorRT does not accept it"):
        load(FakeRuntime(None), graph=graph.deployment)
    other = FakeEngine(nvium_bundle, manifest.graph("segment_3"), engine.profiles, device)
    with pytest.raises(EngineError, match="its tensors are not the manifest's: attention_mask"):
        load(FakeRuntime(other), graph=graph.deployment)


def test_the_installed_tensorrt_refuses_a_damaged_engine(
    nvium_bundle: Path, tmp_path: Path
) -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    manifest = load_manifest(nvium_bundle)
    engine = describe_engine(manifest)
    (tmp_path / "engines").mkdir()
    (tmp_path / engine.path).write_bytes(b"no engine" * 100)
    runtime = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR))
    with pytest.raises(EngineError, match="TensorRT does not accept it"):
        tensorrt_session._load_engine(runtime, tmp_path, engine, manifest.graph("head").deployment)
    assert tensorrt_session._installed_versions()["tensorrt-rtx"] == trt.__version__


def test_without_a_gpu_the_reason_is_named(nvium_bundle: Path) -> None:
    if find_gpu() is not None:
        pytest.skip("this machine has a GPU")
    manifest = load_manifest(nvium_bundle)
    manifest = msgspec.structs.replace(manifest, engines=[describe_engine(manifest)])
    with pytest.raises(EngineError, match=r"cuda-python is not installed|CUDA finds none"):
        tensorrt_session.find_engines(manifest)


def find_gpu() -> CudaDevice | None:
    """The GPU of this machine."""
    try:
        from cuda.bindings import runtime

        return CudaDevice(runtime)
    except (ImportError, EngineError):
        return None


@pytest.mark.gpu
def test_the_golden_bundle_on_its_engines(nvium_bundle: Path, tmp_path: Path, root: Path) -> None:
    """bf16 or fp16 on the GPU: close, and the greedy tokens agree where the margin is wide."""
    device = find_gpu()
    if device is None:
        pytest.skip("no NVIDIA GPU that CUDA can use")
    names = [target.name for target in TARGETS if target.sm == device.sm]
    if not names:
        pytest.skip(f"no target has this GPU's SM {device.sm}")
    shutil.copytree(nvium_bundle, tmp_path / "bundle")
    build_engines(tmp_path / "bundle", names[:1])
    golden = load_golden(root)
    with open_model(tmp_path / "bundle", backend="tensorrt") as model:
        found = score_exits(model, golden["input_ids"])
        expected = golden["exit_logits"]
        assert np.abs(found.exit_logits - expected).max() <= 0.05 * np.abs(expected).max()
        assert np.abs(np.exp(found.exit_logprobs) - golden["exit_prob"]).max() <= 0.05
        decoder = PiggybackDecoder(model, 1, [ArgmaxRouting()], 16)
        out = decoder.feed(golden["prompt_ids"].tolist())
        for token, margin in zip(golden["generated_ids"], golden["generated_margin"], strict=True):
            if margin > 0.5:
                assert out.logits[0].argmax() == token
            out = decoder.feed([[int(token)]])
