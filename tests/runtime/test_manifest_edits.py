"""A manifest edited by hand is refused, whatever was changed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.manifests import (
    make_cached_manifest,
    make_drafter_manifest,
    make_manifest,
    make_streams_manifest,
)

from quatrain.runtime.errors import BundleError
from quatrain.runtime.manifest import dump_manifest, parse_manifest


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


INPUTS_EMBEDS = {"name": "inputs_embeds", "dtype": "float32", "shape": ["batch", "rows", 8]}
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
    "a token of no rows": (change_value("cache", "rows_per_token", value=0), "tokens of 0 rows"),
    "unknown unit": (change_value("cache", "layers", 0, "unit", value="pages"), "pages"),
    "window of nothing": (change_value("cache", "layers", 0, "window", value=0), "window of 0"),
    "embeddings nobody has": (
        change_value("graphs", 0, "inputs", 0, value=INPUTS_EMBEDS),
        "inputs_embeds of segment_0.float32.onnx should be absent",
    ),
    "embeddings nobody has, on a device": (
        change_value("graphs", 0, "deployment", "inputs", 0, value=INPUTS_EMBEDS),
        "inputs_embeds of segment_0.float16.onnx should be absent",
    ),
}
# Of the manifest of a model with streams and its tables on the host.
TABLE = ("embeddings", "tables", 1)
STREAMS_EDITS = {
    "table too many": (change_value("cache", "rows_per_token", value=2), "3 embedding tables"),
    "no tables": (change_value("embeddings", "tables", value=[]), "0 embedding tables"),
    "table of another vocabulary": (change_value(*TABLE, "shape", value=[99, 8]), "[99, 8]"),
    "table of another width": (change_value(*TABLE, "shape", value=[100, 9]), "[100, 9]"),
    "table of no columns": (change_value("embeddings", "tables", 0, "shape", value=[]), "shape []"),
    "table that is none": (change_value(*TABLE, "shape", value=[100]), "shape [100]"),
    "table of another type": (change_value(*TABLE, "dtype", value="int8"), "int8"),
    "table before its file": (change_value(*TABLE, "offset", value=-1), "from byte -1 on"),
    "table behind its file": (change_value(*TABLE, "offset", value=1665), "from byte 1665 on"),
    "table larger than its file": (change_value(*TABLE, "dtype", value="float32"), "3200 bytes"),
    "table of no file": (change_value(*TABLE, "path", value="c.safetensors"), "c.safetensors"),
    "table outside": (change_value(*TABLE, "path", value="../a"), "leaves the bundle"),
    "tables for nobody": (
        change_value("graphs", 0, "inputs", 0, "name", value="input_ids"),
        "and is absent",
    ),
    "tables for nobody on a device": (
        change_value("graphs", 0, "deployment", "inputs", value=[]),
        "segment_0.float16.onnx should be float32 ['batch', 'rows', 24] and is absent",
    ),
    "rows of another width": (
        change_value("graphs", 0, "inputs", 0, "shape", 2, value=8),
        "and is float32 ['batch', 'rows', 8]",
    ),
}
CACHE_EDITS = {
    "cache of other units": (
        change_value("cache", "layers", 0, "unit", value="tokens"),
        "key_cache.0 of segment_0 should be ['batch', 2, 'length', 8]",
    ),
    "cache of other heads": (
        change_value("cache", "layers", 0, "num_heads", value=1),
        "should be ['batch', 1, 'row_length', 8] and is ['batch', 2, 'row_length', 8]",
    ),
    "cache of another capacity": (
        change_value("cache", "capacity", value=10**12),
        "key_cache.0 of segment_0 should be ['batch', 2, 3000000000000, 8]",
    ),
    "values of another width": (
        change_value("graphs", 0, "deployment", "inputs", 2, "shape", 3, value=9),
        "value_cache.0 of segment_0 should be ['batch', 2, 216, 8] and is ['batch', 2, 216, 9]",
    ),
    "cache of no shape": (
        change_value("graphs", 0, "inputs", 1, "shape", value=[]),
        "and is []",
    ),
}
DRAFTER_EDITS = {
    "drafter that is not there": (
        change_value("drafter", "graph", value="guesser"),
        "referred to but not there: guesser",
    ),
    "drafter that is none": (
        change_value("graphs", 1, "role", value="head"),
        "the drafter head, and graphs of that role: none",
    ),
    "decoder that drafts": (
        change_value("drafter", "graph", value="segment_0"),
        "the drafter segment_0, and graphs of that role: ['head']",
    ),
    "drafter for nobody": (change_value("drafter", value=None), "nothing refers to: head"),
    "drafter without a decoder": (
        change_value("graphs", 0, "role", value="segment"),
        "without a decoder",
    ),
    "drafter and exits": (
        change_value("exits", value={"layers": [1], "segments": ["segment_0"], "heads": ["head"]}),
        "exits and a drafter",
    ),
    "no states": (
        change_value("graphs", 0, "outputs", value=[]),
        "no states among the outputs of segment_0.float32.onnx",
    ),
    "no states on a device": (
        change_value("graphs", 0, "deployment", "outputs", 0, "shape", value=["batch"]),
        "no states among the outputs of segment_0.float16.onnx",
    ),
    "states of another width": (
        change_value("graphs", 1, "inputs", 0, "shape", 1, value=9),
        "state of head.float32.onnx should be float32 ['batch', 8] and is float32 ['batch', 9]",
    ),
    "tokens of another type": (
        change_value("graphs", 1, "deployment", "inputs", 1, "dtype", value="float32"),
        "input_ids of head.float16.onnx should be int64 ['batch'] and is float32 ['batch']",
    ),
    "logits of another vocabulary": (
        change_value("graphs", 1, "outputs", 1, "shape", 1, value=99),
        "logits of head.float32.onnx should be float32 ['batch', 100]",
    ),
    "no state to go on from": (
        change_value("graphs", 1, "outputs", 0, "name", value="state_2"),
        "updated_state of head.float32.onnx should be float32 ['batch', 8] and is absent",
    ),
    "nothing to draft": (change_value("limits", "max_draft", value=0), "below 1"),
    "document token outside": (change_value("document_token_id", value=100), "document token"),
    "skipped without a reason": (
        change_value("verification", value={"status": "skipped"}),
        "skipped without a reason",
    ),
    "passed without a check": (
        change_value("verification", value={"status": "passed", "runners": ["fp32"]}),
        "passed without a check",
    ),
    "passed on nothing": (
        change_value("verification", value={"status": "passed", "checks": 3}),
        "passed without a check",
    ),
    "failed, and yet there": (
        change_value("verification", value={"status": "failed"}),
        "status",
    ),
    "document token below": (change_value("document_token_id", value=-1), "document token"),
}
CASES = {name: (make_manifest, *edit) for name, edit in EDITS.items()}

CASES |= {name: (make_streams_manifest, *edit) for name, edit in STREAMS_EDITS.items()}

CASES |= {name: (make_cached_manifest, *edit) for name, edit in CACHE_EDITS.items()}

CASES |= {name: (make_drafter_manifest, *edit) for name, edit in DRAFTER_EDITS.items()}


@pytest.mark.parametrize("name", CASES)
def test_an_edited_manifest_is_refused(name: str):
    make, edit, named = CASES[name]
    data = json.loads(dump_manifest(make()))
    edit(data)
    with pytest.raises(BundleError) as caught:
        parse_manifest(json.dumps(data).encode(), "b/manifest.json")
    assert named in caught.value.found
    assert "export" in caught.value.fix
