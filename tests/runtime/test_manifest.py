"""A manifest edited by hand is refused, whatever was changed."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from quatrain.runtime.errors import BundleError
from quatrain.runtime.manifest import (
    MANIFEST_NAME,
    CacheLayer,
    CacheLayout,
    ExitLayout,
    FileRecord,
    Graph,
    GraphVariant,
    Limits,
    Manifest,
    TensorInfo,
    Versions,
    dump_manifest,
    load_manifest,
    parse_manifest,
)

INPUTS = [TensorInfo(name="input_ids", dtype="int64", shape=["batch", "rows"])]


def make_graph(name: str) -> Graph:
    return Graph(
        name=name,
        role="segment",
        path=f"{name}.float32.onnx",
        dtype="float32",
        inputs=INPUTS,
        outputs=[],
        deployment=GraphVariant(
            path=f"{name}.float16.onnx", dtype="float16", inputs=INPUTS, outputs=[]
        ),
    )


def make_manifest() -> Manifest:
    graphs = [make_graph("segment_0"), make_graph("head")]
    paths = [path for graph in graphs for path in (graph.path, graph.deployment.path)]
    return Manifest(
        schema_version=1,
        family="nvium",
        spec={},
        vocab_size=100,
        stored_dtype="float16",
        deployment_dtype="float16",
        limits=Limits(max_seq_len=64, max_batch=2, prefill_chunk=16, max_deferred=4),
        cache=CacheLayout(
            capacity=72,
            layers=[CacheLayer(layer=0, graph="segment_0", num_heads=2, head_dim=8)],
        ),
        graphs=graphs,
        eos_token_ids=[2],
        files=[FileRecord(path=path, bytes=1, sha256="0" * 64) for path in paths],
        versions=Versions(quatrain="0", onnx="0", onnxruntime="0"),
        exits=ExitLayout(layers=[1], segments=["segment_0"], heads=["head"]),
    )


def test_what_is_written_reads_back(tmp_path):
    (tmp_path / MANIFEST_NAME).write_bytes(dump_manifest(make_manifest()))
    assert load_manifest(tmp_path) == make_manifest()


def set_path(path: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["files"][0]["path"] = data["graphs"][0]["path"] = path

    return change


def change_value(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.__delitem__(key)


EDITS = {
    "newer schema": (change_value("schema_version", value=2), "schema version 2"),
    "no schema": (drop("schema_version"), "schema version None"),
    "unknown key": (change_value("colour", value="red"), "colour"),
    "missing key": (drop("limits"), "limits"),
    "wrong type": (change_value("vocab_size", value="100"), "vocab_size"),
    "wrong nested type": (change_value("limits", "max_batch", value=None), "max_batch"),
    "unknown role": (change_value("graphs", 0, "role", value="boss"), "boss"),
    "path leaves by dots": (set_path("../x.onnx"), "leaves the bundle"),
    "path leaves deep down": (set_path("a/../../x.onnx"), "leaves the bundle"),
    "absolute path": (set_path("/etc/passwd"), "leaves the bundle"),
    "empty path": (set_path(""), "leaves the bundle"),
    "unrecorded file": (change_value("graphs", 0, "path", value="other.onnx"), "other.onnx"),
    "lost graph": (change_value("exits", "heads", value=["head_9"]), "head_9"),
    "cache of a lost graph": (change_value("cache", "layers", 0, "graph", value="x"), "not there"),
    "two graphs of one name": (change_value("graphs", 1, "name", value="segment_0"), "one name"),
    "zero limit": (change_value("limits", "prefill_chunk", value=0), "below 1"),
    "no spare position": (change_value("cache", "capacity", value=64), "capacity 64"),
    "EOS outside": (change_value("eos_token_ids", value=[100]), "EOS"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_is_refused(name: str):
    edit, named = EDITS[name]
    data = json.loads(dump_manifest(make_manifest()))
    edit(data)
    with pytest.raises(BundleError) as caught:
        parse_manifest(json.dumps(data).encode(), "b/manifest.json")
    assert named in caught.value.found
    assert "export" in caught.value.fix


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'"text"'])
def test_what_is_no_manifest_is_refused(data: bytes):
    with pytest.raises(BundleError, match=r"b/manifest\.json"):
        parse_manifest(data, "b/manifest.json")


def test_a_folder_without_manifest_is_named(tmp_path):
    with pytest.raises(BundleError, match=r"no readable manifest\.json"):
        load_manifest(tmp_path)
