"""Which engines and which profile are taken, and what is said where none fits."""

import pytest

from quatrain.runtime.engine_choice import choose_engines, choose_profile
from quatrain.runtime.errors import EngineError, RequestError
from quatrain.runtime.manifest import (
    CacheLayout,
    Engine,
    Graph,
    GraphVariant,
    Limits,
    Manifest,
    Profile,
    TensorInfo,
    Versions,
)

INSTALLED = {"tensorrt-rtx": "1.7.1"}


def make_engine(graph: str = "decoder", **changes: object) -> Engine:
    fields = {
        "target": "a6000",
        "sm": "8.6",
        "flavour": "tensorrt-rtx",
        "version": "1.7.1",
        "path": "engine",
        "bytes": 1,
        "build_seconds": 1.0,
        "profiles": [],
        "plugins": [],
        "vendor_supported": True,
    }
    return Engine(graph=graph, **(fields | changes))  # type: ignore[arg-type]


def make_manifest(*engines: Engine, graphs: tuple[str, ...] = ("decoder",)) -> Manifest:
    info = TensorInfo(name="exit_state", dtype="float32", shape=["batch", "outputs", 8])
    variant = GraphVariant(path="a", dtype="float16", inputs=[info], outputs=[])
    return Manifest(
        schema_version=1,
        family="dense",
        spec={},
        vocab_size=10,
        stored_dtype="float16",
        deployment_dtype="float16",
        limits=Limits(max_seq_len=8, max_batch=1, prefill_chunk=8, max_deferred=1),
        cache=CacheLayout(capacity=16, layers=[]),
        graphs=[
            Graph(
                name=name,
                role="decoder",
                path="a",
                dtype="float32",
                inputs=[info],
                outputs=[],
                deployment=variant,
            )
            for name in graphs
        ],
        eos_token_ids=[],
        files=[],
        versions=Versions(quatrain="0", onnx="0", onnxruntime="0"),
        engines=list(engines),
    )


def test_the_engines_of_this_gpu_are_taken() -> None:
    other = make_engine(sm="8.0", target="a100")
    chosen = choose_engines(make_manifest(other, make_engine()), "8.6", INSTALLED)
    assert chosen.sm == "8.6"
    assert chosen.engines["decoder"].target == "a6000"


def test_what_the_vendor_supports_comes_first() -> None:
    rtx = make_engine(sm="8.0", target="a100", vendor_supported=False)
    classic = make_engine(sm="8.0", target="a100", flavour="tensorrt", version="10.3")
    installed = INSTALLED | {"tensorrt": "10.3"}
    assert choose_engines(make_manifest(rtx, classic), "8.0", installed).flavour == "tensorrt"
    assert choose_engines(make_manifest(rtx, classic), "8.0", INSTALLED).flavour == "tensorrt-rtx"


@pytest.mark.parametrize(
    ("engines", "sm", "installed", "message"),
    [
        ([], "8.6", INSTALLED, "it holds no engines"),
        ([make_engine()], "9.0", INSTALLED, r"a6000 \(SM 8.6\) only"),
        ([make_engine()], "8.6", {"tensorrt-rtx": "1.8.0"}, "built with tensorrt-rtx 1.7.1"),
        ([make_engine()], "8.6", {"tensorrt": "1.7.1"}, "installed is tensorrt 1.7.1"),
        ([make_engine()], "8.6", {}, "installed is no TensorRT"),
    ],
)
def test_a_refusal_says_what_was_found_and_how_to_rebuild(
    engines: list[Engine], sm: str, installed: dict[str, str], message: str
) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        choose_engines(make_manifest(*engines), sm, installed)
    assert "quatrain build BUNDLE --target" in caught.value.fix


def test_every_graph_needs_an_engine() -> None:
    manifest = make_manifest(make_engine(), graphs=("decoder", "head"))
    with pytest.raises(EngineError, match="no engine for head"):
        choose_engines(manifest, "8.6", INSTALLED)


PROFILES = [
    Profile(name="prefill", shapes={"input_ids": [[1, 1], [1, 64], [4, 64]]}),
    Profile(name="decode", shapes={"input_ids": [[1, 1], [1, 1], [4, 3]]}),
]


@pytest.mark.parametrize(
    ("shape", "profile"), [((1, 1), 1), ((4, 3), 1), ((1, 4), 0), ((4, 64), 0)]
)
def test_the_decode_profile_is_taken_where_it_fits(shape: tuple[int, int], profile: int) -> None:
    assert choose_profile(PROFILES, {"input_ids": shape}) == profile


@pytest.mark.parametrize("shape", [(5, 1), (1, 65), (0, 1)])
def test_a_call_outside_all_profiles_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match="no profile allows it") as caught:
        choose_profile(PROFILES, {"input_ids": shape})
    assert "decode: input_ids" in caught.value.found
    assert "prefill: input_ids" in caught.value.found
