"""What is written as a manifest reads back, and what is no manifest is refused."""

import json

import msgspec
import pytest
from tests.runtime.manifests import (
    make_cached_manifest,
    make_drafter_manifest,
    make_manifest,
    make_streams_manifest,
)

from quatrain.runtime.errors import BundleError
from quatrain.runtime.manifest import (
    MANIFEST_NAME,
    Manifest,
    Verification,
    dump_manifest,
    load_manifest,
    parse_manifest,
)


@pytest.mark.parametrize(
    "manifest",
    [make_manifest(), make_streams_manifest(), make_cached_manifest(), make_drafter_manifest()],
)
def test_what_is_written_reads_back(tmp_path, manifest: Manifest):
    (tmp_path / MANIFEST_NAME).write_bytes(dump_manifest(manifest))
    assert load_manifest(tmp_path) == manifest


def test_a_manifest_from_before_there_were_drafters_is_read():
    data = json.loads(dump_manifest(make_manifest()))
    del data["limits"]["max_draft"], data["drafter"], data["document_token_id"]
    manifest = parse_manifest(json.dumps(data).encode(), "b")
    assert manifest == make_manifest()
    assert (manifest.limits.max_draft, manifest.drafter) == (8, None)


def test_a_verification_is_read_and_an_older_manifest_has_none():
    found = Verification(status="passed", runners=["fp32"], checks=9, logits_error=1e-6)
    manifest = msgspec.structs.replace(make_manifest(), verification=found)
    data = json.loads(dump_manifest(manifest))
    assert parse_manifest(json.dumps(data).encode(), "b").verification == found
    del data["verification"]
    assert parse_manifest(json.dumps(data).encode(), "b") == make_manifest()


def test_rows_and_tokens_are_the_same_where_a_token_has_one_row():
    manifest = make_manifest()
    layer = msgspec.structs.replace(manifest.cache.layers[0], unit="rows")
    cache = msgspec.structs.replace(manifest.cache, layers=[layer])
    data = dump_manifest(msgspec.structs.replace(manifest, cache=cache))
    assert parse_manifest(data, "b").cache.positions(layer) == 72


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'"text"'])
def test_what_is_no_manifest_is_refused(data: bytes):
    with pytest.raises(BundleError, match=r"b/manifest\.json"):
        parse_manifest(data, "b/manifest.json")


def test_a_folder_without_manifest_is_named(tmp_path):
    with pytest.raises(BundleError, match=r"no readable manifest\.json"):
        load_manifest(tmp_path)


def test_a_manifest_that_may_not_be_read(tmp_path, monkeypatch):
    def deny(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.read_bytes", deny)
    with pytest.raises(BundleError, match="Permission denied") as caught:
        load_manifest(tmp_path)
    assert "read it" in caught.value.fix and "export" not in caught.value.fix
