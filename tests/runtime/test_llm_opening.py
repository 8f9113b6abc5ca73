"""Opening and closing an `LLM`: self-test, files, arguments, and what is asked of a closed one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.llm_cases import GREEDY

from quatrain.runtime import LLM, BundleError, RequestError


def test_the_self_test_passes_and_a_wrong_one_is_named(nvium_bundle: Path, tmp_path: Path) -> None:
    LLM(nvium_bundle, backend="onnxruntime", self_test=True).close()
    bundle = tmp_path / "bundle"
    shutil.copytree(nvium_bundle, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["self_test"]["expected_ids"][3] ^= 1
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="step 3: token"):
        LLM(bundle, backend="onnxruntime", self_test=True)
    manifest["self_test"]["expected_ids"][3] ^= 1
    manifest["self_test"]["expected_exits"][2] = 9
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"step 2: exit \d, expected 9"):
        LLM(bundle, backend="onnxruntime", self_test=True)
    manifest["self_test"] = None
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="records none"):
        LLM(bundle, backend="onnxruntime", self_test=True)


def test_a_changed_file_is_found_unless_told_otherwise(nvium_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(nvium_bundle, bundle)
    record = next(bundle.rglob("*.onnx"))
    data = bytearray(record.read_bytes())
    data += b"\0\0"
    record.write_bytes(data)
    with pytest.raises(BundleError, match=record.name):
        LLM(bundle, backend="onnxruntime")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"threads": value} for value in (0, True, 1.5, 999_999)),
        *({"max_deferred": value} for value in (0, 10**6, True)),
        {"backend": "cuda"},
    ],
)
def test_wrong_arguments_are_refused(nvium_bundle: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        LLM(nvium_bundle, **wrong)


def test_an_empty_path_is_no_session_cache(
    nvium_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="empty path"):
        LLM(nvium_bundle.resolve(), backend="onnxruntime", session_cache="")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json"):
        LLM(tmp_path)


def test_a_closed_llm_refuses_work(nvium_bundle: Path) -> None:
    llm = LLM(str(nvium_bundle), backend="onnxruntime", threads=1)
    conversation, stream = llm.conversation(), llm.stream([1], GREEDY)
    conversation.send([1], GREEDY)
    llm.close()
    llm.close()
    for ask in (
        lambda: llm.generate([1], GREEDY),
        lambda: llm.stream([1], GREEDY),
        lambda: next(stream),
        lambda: llm.logits([1]),
        lambda: conversation.send([1], GREEDY),
        lambda: llm.conversation(),
    ):
        with pytest.raises(RequestError, match="closed"):
            ask()


def test_what_streams_while_the_llm_is_closed_ends_there(nvium_bundle: Path) -> None:
    llm = LLM(nvium_bundle, backend="onnxruntime", threads=1)
    conversation = llm.conversation()
    streams = [llm.stream([1], GREEDY), conversation.stream([1], GREEDY)]
    abandoned = llm.conversation().stream([1], GREEDY)
    for stream in (*streams, abandoned):
        for _ in range(6):  # far enough that every buffer is bound
            next(stream)
    llm.close()
    for stream in streams:
        with pytest.raises(RequestError, match="closed"):
            next(stream)
    abandoned.close()
    assert conversation.token_ids == []
