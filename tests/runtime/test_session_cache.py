"""Sessions kept as ONNX Runtime optimized them: the same outputs, and never a reason to fail."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cache_entries import flip_bit, list_entries, only_entry

from quatrain.exporter import export_checkpoint
from quatrain.runtime import LLM, SamplingParams, onnxruntime_session, session_cache
from quatrain.runtime.manifest import load_manifest
from quatrain.runtime.session import open_model

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "checkpoints"
CHECKED = {"self_test": False, "verify": False}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One graph, its weights linked."""
    folder = tmp_path_factory.mktemp("cached") / "bundle"
    export_checkpoint(SAMPLES / "topics-dense", folder, **CHECKED)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "below" / "cache"


def look(bundle: Path, cache: Path | None, **settings: object) -> tuple[bytes, list[list[int]]]:
    """All logits and some tokens."""
    prompts = [[5, 9, 300, 7], [8, 8]]
    with LLM(bundle, threads=1, session_cache=cache, **settings) as llm:  # type: ignore[arg-type]
        logits = np.concatenate([llm.logits(prompt)[0] for prompt in prompts])
        drawn = SamplingParams(seed=1, max_tokens=6, ignore_eos=True)
        results = llm.generate(prompts, [GREEDY, drawn])
    return logits.tobytes(), [result.token_ids for result in results]


def count_optimizations(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Grows by a path whenever a session is optimized for a cache."""
    saved: list[Path] = []

    def save(path: Path, target: Path, exact: bool) -> None:
        saved.append(path)
        original(path, target, exact)

    original = onnxruntime_session._save_optimized
    monkeypatch.setattr(onnxruntime_session, "_save_optimized", save)
    return saved


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("topics-dense", {"quantize": "int8"}, {"exact": True}),
        ("topics-bank-topk", {"quantize": "int4"}, {}),
        ("topics-hidden-decoding", {"embeddings": "host"}, {}),
        ("topics-hilp", {"drafter": True}, {"draft": 3}),
        ("topics-nvium", {"quantize": "int4"}, {}),
    ],
)
def test_outputs_are_the_same_to_the_bit(
    tmp_path: Path, name: str, options: dict[str, object], settings: dict[str, object]
) -> None:
    bundle, cache = tmp_path / "bundle", tmp_path / "cache"
    export_checkpoint(SAMPLES / name, bundle, **CHECKED, **options)  # type: ignore[arg-type]
    wanted = look(bundle, None, **settings)
    assert look(bundle, cache, **settings) == wanted  # which writes the entries
    assert len(list_entries(cache)) == len(load_manifest(bundle).graphs)
    assert look(bundle, cache, **settings) == wanted


def test_a_second_opening_optimizes_nothing(
    bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = count_optimizations(monkeypatch)
    opened: list[Path] = []
    load = onnxruntime_session._load
    monkeypatch.setattr(
        onnxruntime_session, "_load", lambda path, *rest: opened.append(path) or load(path, *rest)
    )
    for _ in range(2):
        open_model(bundle, backend="onnxruntime", threads=1, session_cache=cache).close()
    assert saved == [bundle / "decoder.cpu.float32.onnx"]
    assert opened == [only_entry(cache) / "model.onnx"] * 2


def test_what_a_killed_process_left_goes_even_if_nothing_is_written(
    bundle: Path, cache: Path
) -> None:
    look(bundle, cache)
    left = cache / ".quatrain-unfinished-old"
    left.mkdir()
    os.utime(left, (1, 1))
    look(bundle, cache)
    only_entry(cache)


def test_the_entry_is_the_datas_wherever_the_bundle_lies(
    bundle: Path, cache: Path, tmp_path: Path
) -> None:
    look(bundle, cache)
    shutil.copytree(bundle, tmp_path / "elsewhere")  # with its times
    look(tmp_path / "elsewhere", cache)
    only_entry(cache)


def test_weights_changed_behind_their_size_and_time_are_not_opened_as_they_were(
    bundle: Path, tmp_path: Path, cache: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    before = look(copy, cache)
    [weights] = (copy / "weights").iterdir()
    flip_bit(weights, weights.stat().st_size - 1)
    after = look(copy, cache)
    assert after != before and after == look(copy, None)
    assert len(list_entries(cache)) == 2


def test_other_weights_graphs_versions_processors_and_options_are_other_entries(
    bundle: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy, copy_function=shutil.copyfile)
    for record in load_manifest(bundle).files:
        shutil.copystat(bundle / record.path, copy / record.path)
    graph = copy / "decoder.cpu.float32.onnx"
    seen = []

    def add() -> None:
        with open_model(copy, backend="onnxruntime", threads=1, session_cache=cache):
            seen.append(len(list_entries(cache)))

    add()
    [weights] = (copy / "weights").iterdir()
    flip_bit(weights, weights.stat().st_size - 1)
    add()
    graph.write_bytes(graph.read_bytes() + b"\x1a\x00")  # an empty doc_string behind the rest
    add()
    monkeypatch.setattr(session_cache, "describe_cpu", lambda: "another")
    add()
    monkeypatch.setattr(onnxruntime_session.ort, "get_build_info", lambda: "another")
    add()
    open_model(copy, backend="onnxruntime", threads=2, exact=True, session_cache=cache).close()
    assert [*seen, len(list_entries(cache))] == [1, 2, 3, 4, 5, 6]
    open_model(copy, backend="onnxruntime", threads=1, exact=True, session_cache=cache).close()
    assert len(list_entries(cache)) == 6  # threads do not matter


def truncate(entry: Path) -> None:
    data = entry / "model.data"
    os.truncate(data, data.stat().st_size - 1)


def alter(entry: Path) -> None:
    model = bytearray((entry / "model.onnx").read_bytes())
    model[len(model) // 2] ^= 1
    (entry / "model.onnx").write_bytes(model)


@pytest.mark.parametrize(
    "spoil",
    [
        truncate,
        alter,
        lambda entry: flip_bit(entry / "model.data", 1000),
        lambda entry: (entry / "model.data").unlink(),
        lambda entry: (entry / "entry.json").unlink(),
        lambda entry: (entry / "entry.json").write_text("[]"),
        lambda entry: (entry / "entry.json").write_text('{"made_from": {}}'),
    ],
)
def test_a_spoilt_entry_is_made_again(
    bundle: Path,
    cache: Path,
    spoil: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = look(bundle, cache)
    saved = count_optimizations(monkeypatch)
    spoil(only_entry(cache))
    assert look(bundle, cache) == wanted
    assert "is made again" in caplog.text
    assert look(bundle, cache) == wanted
    assert len(saved) == 1
    only_entry(cache)


def test_an_entry_that_onnx_runtime_refuses_goes_and_the_bundle_is_opened_without(
    bundle: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = look(bundle, None)
    with monkeypatch.context() as patched:
        patched.setattr(
            onnxruntime_session,
            "_save_optimized",
            lambda path, target, exact: target.write_bytes(b"no model"),
        )
        assert look(bundle, cache) == wanted
    assert "is opened without the session cache" in caplog.text
    assert not list_entries(cache)
    assert look(bundle, cache) == wanted
    assert (only_entry(cache) / "model.data").exists()


SCRIPT = """
import logging, resource, signal, sys
from quatrain.runtime import LLM
logging.basicConfig(level=logging.WARNING)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
LLM(sys.argv[1], threads=1, session_cache=sys.argv[2]).close()
"""


def open_elsewhere(bundle: Path, cache: Path, room: int) -> subprocess.CompletedProcess[str]:
    """In a process that can write no more than so many bytes into a file; -1 for any number."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundle), str(cache), str(room)],
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("room", [0, 1_000_000])
def test_a_full_disk_leaves_nothing_and_opens_the_bundle(
    bundle: Path, cache: Path, room: int
) -> None:
    done = open_elsewhere(bundle, cache, room)
    assert "is opened without the session cache" in done.stderr
    assert not list_entries(cache)


def test_a_folder_that_cannot_be_made_opens_the_bundle(
    bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert look(bundle, tmp_path / "file") == look(bundle, None)
    assert "is opened without the session cache" in caplog.text


def test_a_folder_with_stray_bytes_in_its_name_opens_the_bundle(
    bundle: Path, tmp_path: Path
) -> None:
    stray = tmp_path / os.fsdecode(b"\xff")
    done = open_elsewhere(bundle, stray, room=-1)  # a log with such a name breaks pytest's workers
    assert "is opened without the session cache" in done.stderr
