"""What a user may ask of a bundle, and how the rest is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import (
    CacheLayout,
    ExitLayout,
    Limits,
    Manifest,
    Versions,
)
from quatrain.runtime.requests import RequestReader, read_id_array, split_params, split_prompts
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.tokenizer import Tokenizer

BOS = 0


def make_manifest(*, has_exits: bool = False) -> Manifest:
    return Manifest(
        schema_version=1,
        family="nvium" if has_exits else "dense",
        spec={},
        vocab_size=200,
        stored_dtype="float32",
        deployment_dtype="float16",
        limits=Limits(max_seq_len=10, max_batch=2, prefill_chunk=4, max_deferred=4),
        cache=CacheLayout(capacity=16, layers=[]),
        graphs=[],
        eos_token_ids=[],
        files=[],
        versions=Versions(quatrain="0", onnx="0", onnxruntime="0"),
        exits=ExitLayout(layers=[1, 3], segments=[], heads=[]) if has_exits else None,
    )


def make_tokenizer(folder: Path, bos: int | None = BOS, *, add: bool = True) -> Tokenizer:
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = tokenizers.Tokenizer(models.BPE({c: i + 1 for i, c in enumerate(characters)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json", bos, add)


def read(prompt: Any, past: tuple[int, ...] = (), *, exits: bool = False, **params: Any) -> Any:
    reader = RequestReader(make_manifest(has_exits=exits), None)
    return reader.read(prompt, SamplingParams(**params), past)


# --- prompts ---


def test_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    reader = RequestReader(make_manifest(), make_tokenizer(tmp_path))
    for ids in ([5, 6], (5, 6), np.array([5, 6]), [np.int32(5), 6]):
        assert reader.encode(ids) == [5, 6]  # type: ignore[arg-type]


def test_text_gets_its_bos(tmp_path: Path) -> None:
    reader = RequestReader(make_manifest(), make_tokenizer(tmp_path))
    assert reader.encode("ab")[0] == BOS and len(reader.encode("ab")) == 3
    assert len(reader.encode("ab", is_start=False)) == 2


@pytest.mark.parametrize("add", [True, False])
def test_an_empty_text_is_bos(tmp_path: Path, add: bool) -> None:
    reader = RequestReader(make_manifest(), make_tokenizer(tmp_path, add=add))
    assert reader.read("", SamplingParams()).prompt_ids == [BOS]


def test_an_empty_prompt_without_bos_is_refused(tmp_path: Path) -> None:
    reader = RequestReader(make_manifest(), make_tokenizer(tmp_path, bos=None))
    for prompt in ("", []):
        with pytest.raises(RequestError, match="empty prompt"):
            reader.read(prompt, SamplingParams())


def test_a_later_turn_may_be_empty() -> None:
    assert read([], past=(1, 2)).context_ids == [1, 2]


@pytest.mark.parametrize(
    "prompt",
    [
        *([200], [-1], [2**70], [1.0], [True], ["a"], [None], [[1]], 5, b"a", None, {"a": 1}),
        *(np.array([1.5]), np.array([[1]]), np.array(3)),
    ],
)
def test_what_is_no_token_id_is_refused(prompt: object) -> None:
    with pytest.raises(RequestError, match="token ids"):
        read(prompt)


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        read("text")


def test_a_token_outside_the_model_is_refused_in_text_too(tmp_path: Path) -> None:
    reader = RequestReader(make_manifest(), make_tokenizer(tmp_path))
    with pytest.raises(RequestError, match="0 to 199"):
        reader.encode("日本")


# --- limits ---


def test_output_ends_at_the_length_limit() -> None:
    assert read([1] * 4, max_tokens=3).max_tokens == 3
    assert read([1] * 4, max_tokens=100).max_tokens == 6
    assert read([1] * 9).max_tokens == 1
    assert read([1] * 10, max_tokens=0).max_tokens == 0


@pytest.mark.parametrize(("past", "prompt", "max_tokens"), [(0, 10, 5), (0, 11, 0), (6, 4, 1)])
def test_a_prompt_beyond_the_limit_names_it(past: int, prompt: int, max_tokens: int) -> None:
    with pytest.raises(RequestError, match="sequences of 10 tokens") as caught:
        read([1] * prompt, past=(1,) * past, max_tokens=max_tokens)
    assert "--max-seq-len" in caught.value.fix


# --- parameters against the model ---


@pytest.mark.parametrize("routing", ["sample", "argmax", 0])
def test_routing_without_exits_is_refused(routing: object) -> None:
    with pytest.raises(RequestError, match="no exits"):
        read([1], routing=routing)


def test_a_forced_exit_must_exist() -> None:
    assert read([1], exits=True, routing=1).params.routing == 1
    with pytest.raises(RequestError, match="exits 0 to 1"):
        read([1], exits=True, routing=2)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        read([1], stop="x")


def test_stop_ids_must_exist() -> None:
    assert read([1], stop_token_ids=[199])
    with pytest.raises(RequestError, match="200 tokens"):
        read([1], stop_token_ids=[200])


def test_params_of_another_kind_are_refused() -> None:
    with pytest.raises(RequestError, match="dict"):
        RequestReader(make_manifest(), None).read([1], {"top_k": 3})  # type: ignore[arg-type]


# --- one or several ---


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        ((1, 2), [(1, 2)]),
        ([[1, 2], "text"], [[1, 2], "text"]),
        (["a", "b"], ["a", "b"]),
        ([], []),
        ([[]], [[]]),
        ([1, [2]], [[1, [2]]]),
        (None, [None]),
    ],
)
def test_split_prompts(given: Any, expected: list[Any]) -> None:
    assert split_prompts(given) == expected


def test_split_prompts_of_arrays() -> None:
    assert [p.tolist() for p in split_prompts(np.array([1, 2]))] == [[1, 2]]  # type: ignore[union-attr]
    assert [p.tolist() for p in split_prompts(np.array([[1], [2]]))] == [[1], [2]]  # type: ignore[union-attr]


def test_split_params() -> None:
    one, two = SamplingParams(top_k=1), SamplingParams(top_k=2)
    assert split_params(None, 2) == [SamplingParams()] * 2
    assert split_params(one, 2) == [one, one]
    assert split_params([one, two], 2) == [one, two]
    with pytest.raises(RequestError, match="2 params for 3 prompts"):
        split_params([one, two], 3)


# --- arrays for logits ---


def test_id_arrays() -> None:
    for given in ([1, 2], [[1, 2]], np.array([1, 2], dtype=np.uint8)):
        ids = read_id_array(given, make_manifest())
        assert ids.tolist() == [[1, 2]] and ids.dtype == np.int64


@pytest.mark.parametrize(
    "given",
    [
        *([], [[]], [1.0], [True], "text", [[1, 2], [3]], [[[1]]], 3, None, [1] * 11),
        *([200], [-1], [2**70], np.array([2**63], dtype=np.uint64)),
    ],
)
def test_bad_id_arrays_are_refused(given: Any) -> None:
    with pytest.raises(RequestError):
        read_id_array(given, make_manifest())
