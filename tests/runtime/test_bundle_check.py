"""A bundle that is not as it was written is refused, and the file that differs is named."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from quatrain.runtime import bundle_check
from quatrain.runtime.bundle_check import hash_header, list_comparisons, verify_bundle
from quatrain.runtime.errors import BundleError
from quatrain.runtime.manifest import (
    CacheLayout,
    Engine,
    FileRecord,
    Limits,
    Link,
    Manifest,
    Versions,
)

HEADER = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)


def make_manifest(*records: FileRecord) -> Manifest:
    return Manifest(
        schema_version=1,
        family="dense",
        spec={},
        vocab_size=8,
        stored_dtype="float32",
        deployment_dtype="float16",
        limits=Limits(max_seq_len=8, max_batch=1, prefill_chunk=4, max_deferred=1),
        cache=CacheLayout(capacity=16, layers=[]),
        graphs=[],
        eos_token_ids=[],
        files=list(records),
        versions=Versions(quatrain="0", onnx="0", onnxruntime="0"),
    )


def record_file(path: Path, *, has_hash: bool = True) -> FileRecord:
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest() if has_hash else None
    return FileRecord(path=path.name, bytes=len(data), sha256=digest)


def record_link(path: Path, *, has_hash: bool = False) -> FileRecord:
    data, status = path.read_bytes(), path.stat()
    return FileRecord(
        path=path.name,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest() if has_hash else None,
        link=Link(
            mtime_ns=status.st_mtime_ns,
            header_sha256=hashlib.sha256(data[: 8 + len(HEADER)]).hexdigest(),
        ),
    )


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(b"a graph")
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(WEIGHTS)
    return path


def change_data_only(path: Path) -> None:
    """Other weights, same size, same header, same time."""
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_bytes(WEIGHTS[:-8] + b"12345678")
    os.utime(path, ns=times)


def test_an_intact_bundle_passes(graph: Path, weights: Path) -> None:
    manifest = make_manifest(record_file(graph), record_link(weights))
    verify_bundle(graph.parent, manifest)
    verify_bundle(graph.parent, manifest, full=True)


def swap_for_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap_for_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def swap_for_outside_link(path: Path) -> None:
    outside = path.parent.parent / f"outside-{path.parent.name}"
    path.rename(outside)
    path.symlink_to(outside)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.unlink(), "No such file"),
        (swap_for_folder, "not a file"),
        (swap_for_loop, "loop|symbolic"),
        (swap_for_outside_link, "leaves the bundle"),
        (lambda path: path.write_bytes(b"a graph!"), "8 bytes; the manifest says 7"),
        (lambda path: path.write_bytes(b"A graph"), "SHA-256"),
    ],
)
def test_damage_is_named(graph: Path, damage: Callable[[Path], None], found: str) -> None:
    manifest = make_manifest(record_file(graph))
    damage(graph)
    with pytest.raises(BundleError, match=found) as caught:
        verify_bundle(graph.parent, manifest)
    assert "decoder.onnx" in caught.value.asked and caught.value.fix


def test_a_file_that_may_not_be_read(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = make_manifest(record_file(graph))
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(bundle_check, "QUICK_BYTES", 1)  # nor is a large one, not read here
    with pytest.raises(BundleError, match="Permission denied") as caught:
        verify_bundle(graph.parent, manifest)
    assert "read it" in caught.value.fix and "export" not in caught.value.fix


def test_a_damaged_engine_can_be_built_again(graph: Path) -> None:
    engines = [
        Engine(
            graph="decoder",
            target=target,
            sm="8.6",
            flavour="tensorrt-rtx",
            version="1",
            path=graph.name,
            bytes=7,
            build_seconds=1.0,
            profiles=[],
            plugins={},
            vendor_supported=True,
        )
        for target in ("a6000", "rtx3090")
    ]
    manifest = msgspec.structs.replace(make_manifest(record_file(graph)), engines=engines)
    graph.write_bytes(b"A graph")
    with pytest.raises(BundleError, match="SHA-256") as caught:
        verify_bundle(graph.parent, manifest)
    assert f"quatrain build {graph.parent} --target a6000 rtx3090)" in caught.value.fix


def test_a_link_inside_the_bundle_is_fine(graph: Path, tmp_path: Path) -> None:
    manifest = make_manifest(record_file(graph))
    graph.rename(tmp_path / "other")
    graph.symlink_to("other")
    verify_bundle(tmp_path, manifest)


def test_a_bundle_reached_through_a_link_is_fine(graph: Path, tmp_path: Path) -> None:
    link = tmp_path / "link-to-bundle"
    link.symlink_to(tmp_path)
    verify_bundle(link, make_manifest(record_file(graph)))


def test_big_files_are_hashed_on_request_only(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = make_manifest(record_file(graph))
    monkeypatch.setattr(bundle_check, "QUICK_BYTES", 6)
    graph.write_bytes(b"A graph")
    verify_bundle(graph.parent, manifest)
    with pytest.raises(BundleError, match="SHA-256"):
        verify_bundle(graph.parent, manifest, full=True)


# --- linked weights ---


def test_linked_weights_are_not_read(weights: Path) -> None:
    manifest = make_manifest(record_link(weights, has_hash=True))
    change_data_only(weights)
    verify_bundle(weights.parent, manifest)
    with pytest.raises(BundleError, match="SHA-256"):
        verify_bundle(weights.parent, manifest, full=True)


def test_what_was_not_hashed_is_told(graph: Path, weights: Path) -> None:
    manifest = make_manifest(record_file(graph), record_link(weights))
    assert list_comparisons(manifest) == {
        graph.name: "sha256",
        weights.name: "size, time and header",
    }
    change_data_only(weights)
    verify_bundle(weights.parent, manifest, full=True)
    hashed = make_manifest(record_link(weights, has_hash=True))
    assert list_comparisons(hashed) == {weights.name: "sha256"}


def test_linked_weights_of_another_time_are_refused(weights: Path) -> None:
    manifest = make_manifest(record_link(weights))
    os.utime(weights, ns=(1, 1))
    with pytest.raises(BundleError, match="modified at 1 ns") as caught:
        verify_bundle(weights.parent, manifest)
    assert "--weights copy" in caught.value.fix


def test_a_recorded_hash_settles_another_time(weights: Path) -> None:
    manifest = make_manifest(record_link(weights, has_hash=True))
    os.utime(weights, ns=(1, 1))
    verify_bundle(weights.parent, manifest)
    weights.write_bytes(WEIGHTS[:-8] + b"12345678")
    with pytest.raises(BundleError, match="SHA-256"):
        verify_bundle(weights.parent, manifest)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (WEIGHTS[:8] + WEIGHTS[8:].replace(b"F32", b"I32"), "header with SHA-256"),
        (b"\xff" * len(WEIGHTS), "no safetensors header"),
    ],
)
def test_another_header_is_named(weights: Path, data: bytes, found: str) -> None:
    manifest = make_manifest(record_link(weights))
    times = (weights.stat().st_atime_ns, weights.stat().st_mtime_ns)
    weights.write_bytes(data)
    os.utime(weights, ns=times)
    with pytest.raises(BundleError, match=found):
        verify_bundle(weights.parent, manifest)


def test_a_linked_zip_is_held_to_its_ends(tmp_path: Path) -> None:
    """As torch.save writes it: names and shapes come first, and last the CRCs of all data."""
    mib, path = 1 << 20, tmp_path / "model.pt"
    data = bytearray(b"PK\x03\x04" + bytes(4 * mib))
    path.write_bytes(data)
    times = (1, 1)
    os.utime(path, ns=times)
    digest = hashlib.sha256(data[:mib] + data[-mib:]).hexdigest()
    link = Link(mtime_ns=1, header_sha256=digest)
    manifest = make_manifest(FileRecord(path=path.name, bytes=len(data), sha256=None, link=link))
    verify_bundle(tmp_path, manifest)
    assert list_comparisons(manifest) == {path.name: "size, time, first and last MiB"}
    for place, is_seen in [(mib - 1, True), (2 * mib, False), (-mib, True), (-1, True)]:
        changed = data.copy()
        changed[place] = 1
        path.write_bytes(changed)
        os.utime(path, ns=times)
        if is_seen:
            with pytest.raises(BundleError, match="header with SHA-256"):
                verify_bundle(tmp_path, manifest)
        else:
            verify_bundle(tmp_path, manifest)


def test_a_linked_zip_may_be_small(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04 and little more")
    assert (
        hash_header(path, path.stat().st_size) == hashlib.sha256(path.read_bytes() * 2).hexdigest()
    )


def test_a_tiny_link_is_no_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"abc")
    with pytest.raises(BundleError, match="no safetensors header"):
        verify_bundle(tmp_path, make_manifest(record_link(path)))
