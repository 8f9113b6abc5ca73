"""Bundles appear whole or not at all, and weights get into them without being copied."""

import errno
import os
from pathlib import Path

import pytest

from quatrain.exporter import bundle as bundle_module
from quatrain.exporter.bundle import (
    hash_file,
    place_weights,
    record_link,
    staged_bundle,
    write_file,
)
from quatrain.exporter.errors import ExportError
from quatrain.runtime.manifest import MANIFEST_NAME


def make_bundle(path: Path, content: str) -> None:
    path.mkdir()
    (path / MANIFEST_NAME).write_text(content)


def test_folder_appears_when_the_block_ends(tmp_path: Path):
    with staged_bundle(tmp_path / "deep" / "out") as staging:
        (staging / "a").write_text("1")
        assert not (tmp_path / "deep" / "out").exists()
    assert (tmp_path / "deep" / "out" / "a").read_text() == "1"
    assert os.listdir(tmp_path / "deep") == ["out"]


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
def test_nothing_is_left_when_the_block_fails(tmp_path: Path, error: BaseException):
    with pytest.raises(type(error)), staged_bundle(tmp_path / "out") as staging:
        (staging / "a").write_text("1")
        raise error
    assert os.listdir(tmp_path) == []


def test_a_failed_overwrite_leaves_the_old_bundle(tmp_path: Path):
    make_bundle(tmp_path / "out", "old")
    with (
        pytest.raises(KeyboardInterrupt),
        staged_bundle(tmp_path / "out", overwrite=True) as staging,
    ):
        (staging / MANIFEST_NAME).write_text("new")
        raise KeyboardInterrupt
    assert (tmp_path / "out" / MANIFEST_NAME).read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("place", ["staging", "out"])
def test_a_failed_rename_leaves_the_old_bundle(tmp_path: Path, monkeypatch, place):
    make_bundle(tmp_path / "out", "old")
    rename = Path.rename

    def fail_at_place(self: Path, target: Path) -> Path:
        if self.name == place or f".{place}-" in self.name:
            raise OSError(errno.EIO, "input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_at_place)
    with (
        pytest.raises(ExportError, match="input/output error"),
        staged_bundle(tmp_path / "out", overwrite=True) as staging,
    ):
        (staging / MANIFEST_NAME).write_text("new")
    assert (tmp_path / "out" / MANIFEST_NAME).read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_an_old_bundle_that_cannot_be_put_back_is_not_removed(tmp_path: Path, monkeypatch):
    make_bundle(tmp_path / "out", "old")
    rename = Path.rename

    def fail_from_then_on(self: Path, target: Path) -> Path:
        if self.name != "out":
            raise OSError(errno.EIO, "input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_from_then_on)
    with pytest.raises(ExportError), staged_bundle(tmp_path / "out", overwrite=True):
        pass
    [kept] = tmp_path.glob(f".out.old-*/old/{MANIFEST_NAME}")
    assert kept.read_text() == "old"


def test_overwrite_keeps_a_checkpoint_that_has_a_manifest_of_its_own(tmp_path: Path):
    for name in ("config.json", "manifest.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    with (
        pytest.raises(ExportError, match="it is a checkpoint"),
        staged_bundle(tmp_path, overwrite=True),
    ):
        pass
    assert len(list(tmp_path.iterdir())) == 3


def test_overwrite_replaces_a_bundle(tmp_path: Path):
    make_bundle(tmp_path / "out", "old")
    with staged_bundle(tmp_path / "out", overwrite=True) as staging:
        (staging / MANIFEST_NAME).write_text("new")
    assert (tmp_path / "out" / MANIFEST_NAME).read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path):
    (tmp_path / "real").mkdir()
    make_bundle(tmp_path / "real" / "out", "old")
    (tmp_path / "link").symlink_to("real/out")
    with pytest.raises(ExportError, match="--overwrite"), staged_bundle(tmp_path / "link"):
        pytest.fail("the block must not run")
    with staged_bundle(tmp_path / "link", overwrite=True) as staging:
        (staging / MANIFEST_NAME).write_text("new")
    assert (tmp_path / "real" / "out" / MANIFEST_NAME).read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]
    assert os.listdir(tmp_path / "real") == ["out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_to_nothing_is_no_place(tmp_path: Path, overwrite: bool):
    (tmp_path / "link").symlink_to("nothing")
    with (
        pytest.raises(ExportError, match="not a bundle" if overwrite else "there already"),
        staged_bundle(tmp_path / "link", overwrite=overwrite),
    ):
        pytest.fail("the block must not run")
    assert os.listdir(tmp_path) == ["link"]


def test_existing_output_is_refused(tmp_path: Path):
    make_bundle(tmp_path / "out", "old")
    with pytest.raises(ExportError, match="--overwrite"), staged_bundle(tmp_path / "out"):
        pytest.fail("the block must not run")


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    with (
        pytest.raises(ExportError, match="not a bundle"),
        staged_bundle(tmp_path / "photos", overwrite=True),
    ):
        pytest.fail("the block must not run")
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "meow"


def test_full_disk_is_told_and_leaves_nothing(tmp_path: Path):
    with (
        pytest.raises(ExportError, match=r"disk is full[\s\S]*--weights link"),
        staged_bundle(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert os.listdir(tmp_path) == []


def test_linked_weights_share_the_file(tmp_path: Path):
    (tmp_path / "w").write_bytes(b"weights")
    mode, sha256 = place_weights(tmp_path / "w", tmp_path / "b" / "w", None)
    assert (mode, sha256) == ("link", None)
    assert (tmp_path / "b" / "w").samefile(tmp_path / "w")


def test_a_symbolic_link_is_followed_to_its_file(tmp_path: Path):
    (tmp_path / "blob").write_bytes(b"weights")
    (tmp_path / "w").symlink_to("blob")
    place_weights(tmp_path / "w", tmp_path / "b" / "w", "link")
    assert not (tmp_path / "b" / "w").is_symlink()
    assert (tmp_path / "b" / "w").samefile(tmp_path / "blob")


def test_copied_weights_are_their_own_file_with_its_hash(tmp_path: Path):
    (tmp_path / "w").write_bytes(b"weights" * 1000)
    mode, sha256 = place_weights(tmp_path / "w", tmp_path / "b" / "w", "copy")
    assert mode == "copy"
    assert not (tmp_path / "b" / "w").samefile(tmp_path / "w")
    assert sha256 == hash_file(tmp_path / "w") == hash_file(tmp_path / "b" / "w")


def refuse_links(source: object, target: object) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def test_across_file_systems_the_default_copies(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(bundle_module.os, "link", refuse_links)
    (tmp_path / "w").write_bytes(b"weights")
    mode, _ = place_weights(tmp_path / "w", tmp_path / "b" / "w", None)
    assert mode == "copy"
    assert (tmp_path / "b" / "w").read_bytes() == b"weights"


def test_across_file_systems_an_asked_link_is_an_error(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(bundle_module.os, "link", refuse_links)
    (tmp_path / "w").write_bytes(b"weights")
    with pytest.raises(ExportError, match="--weights copy"):
        place_weights(tmp_path / "w", tmp_path / "b" / "w", "link")


def test_link_record_reads_only_the_header(tmp_path: Path):
    header = b'{"__metadata__":{}}     '
    with (tmp_path / "w").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(50 << 30)  # a hole of 50 GB: reading it all would take minutes
    record = record_link(tmp_path, "w")
    assert record.bytes == 50 << 30
    assert record.sha256 is None
    assert record.link is not None
    assert record.link.mtime_ns == (tmp_path / "w").stat().st_mtime_ns


def test_write_file_keeps_the_old_one_on_failure(tmp_path: Path, monkeypatch):
    write_file(tmp_path / "f", b"old")

    def fail(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(bundle_module.os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        write_file(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("mode", [None, "copy"])
def test_weights_never_overwrite_what_is_there(tmp_path: Path, mode):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.safetensors").write_text(name)
    target = tmp_path / "bundle" / "x.safetensors"
    place_weights(tmp_path / "one" / "x.safetensors", target, "link")
    with pytest.raises(FileExistsError):
        place_weights(tmp_path / "two" / "x.safetensors", target, mode)
    assert (tmp_path / "one" / "x.safetensors").read_text() == "one"


@pytest.mark.parametrize("place", ["file/out", "file/below/out", "dangling/out"])
def test_an_output_in_what_is_no_folder(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("file/nothing")
    with (
        pytest.raises(ExportError, match=r"file is a file\nfix: +choose another -o"),
        staged_bundle(tmp_path / place),
    ):
        pytest.fail("the block must not run")


def test_a_source_that_may_not_be_read_is_no_matter_of_the_output(tmp_path: Path):
    denied = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "source" / "file"))
    with (
        pytest.raises(ExportError, match=r"source/file[\s\S]*read it"),
        staged_bundle(tmp_path / "b"),
    ):
        raise denied
    for place in (tmp_path, tmp_path / "b", tmp_path / ".b.staging-1" / "file"):
        with (
            pytest.raises(ExportError, match="make the folder writable"),
            staged_bundle(tmp_path / "b"),
        ):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
