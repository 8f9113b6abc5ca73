"""A file that a user names is looked at before there is anything to write into it."""

from pathlib import Path

import pytest

from quatrain.exporter.output_file import check_output_file, write_output_file
from quatrain.runtime.errors import RequestError


def refuse_files(path: Path, **_: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("missing/file", "there is no folder"),
        ("folder", "it is a folder"),
        ("astray", "there is no folder"),
        ("loop", "loop"),
        ("x" * 252, "too long"),  # the name is possible, that of its temporary file is not
    ],
)
def test_what_could_not_be_written_is_refused(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "astray").symlink_to("missing/file")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RequestError) as caught:
        check_output_file(tmp_path / name, "write it")
    assert caught.value.asked == "write it" and found in caught.value.found


def test_a_folder_that_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "touch", refuse_files)  # permissions say nothing to an administrator
    with pytest.raises(RequestError, match="Permission denied"):
        check_output_file(tmp_path / "file", "write it")


def test_looking_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_text("old")
    link.symlink_to("old")
    for path in (old, link, tmp_path / "new"):
        check_output_file(path, "write it")
    assert sorted(tmp_path.iterdir()) == [link, old] and old.read_text() == "old"
    write_output_file(link, b"\xff", "write it")
    assert link.is_symlink() and old.read_bytes() == b"\xff"
