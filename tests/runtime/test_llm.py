"""`LLM` end to end: real bundles, the golden generations, and transformers as a reference."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from quatrain.exporter import export_checkpoint
from quatrain.runtime import (
    LLM,
    BundleError,
    GenerationResult,
    RequestError,
    SamplingParams,
    perplexity,
)

TEXT = "The quick brown fox jumps over the lazy dog; über naïve 日本 🦊. "
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def golden(root: Path) -> dict[str, NDArray[Any]]:
    with np.load(root / "tests" / "golden" / "nvium" / "golden.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def llm(nvium_bundle: Path) -> Iterator[LLM]:
    """The golden model: exits, no tokenizer."""
    with LLM(nvium_bundle, backend="onnxruntime", threads=1) as opened:
        yield opened


def save_tokenizer(folder: Path) -> None:
    """Byte-level, `<s>` 1 and `</s>` 2 as in the golden config, under its 512 ids."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([TEXT], trainer)
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))


@pytest.fixture(scope="module")
def text_bundle(nvium_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model with a tokenizer and tight limits."""
    folder = tmp_path_factory.mktemp("text")
    shutil.copytree(nvium_checkpoint, folder / "checkpoint", copy_function=shutil.copyfile)
    (folder / "checkpoint").chmod(0o755)
    save_tokenizer(folder / "checkpoint")
    bundle = folder / "bundle"
    export_checkpoint(folder / "checkpoint", bundle, max_seq_len=48, max_batch=2, prefill_chunk=8)
    return bundle


@pytest.fixture(scope="module")
def text_llm(text_bundle: Path) -> Iterator[LLM]:
    with LLM(text_bundle, backend="onnxruntime", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LlamaForCausalLM]]:
    """A random Llama, ours and transformers'."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    reference = LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("dense")
    reference.save_pretrained(folder / "checkpoint")
    export_checkpoint(folder / "checkpoint", folder / "bundle", max_batch=3)
    with LLM(folder / "bundle", backend="onnxruntime", threads=1) as opened:
        yield opened, reference


def run(llm: LLM, prompt: Any, **params: Any) -> GenerationResult:
    [result] = llm.generate([prompt], SamplingParams(**params))
    return result


# --- the golden model ---


def test_golden_generation_and_second_turn(llm: LLM, golden: dict[str, NDArray[Any]]) -> None:
    conversation = llm.conversation()
    for turn, length in (("", 64), ("turn2_", 16)):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        result = conversation.send(golden[f"{turn}prompt_ids"][0], params)
        assert result.token_ids == golden[f"{turn}generated_ids"].tolist()
        assert result.exits == golden[f"{turn}generated_exit"].tolist()
        counts = np.bincount(golden[f"{turn}generated_exit"], minlength=4)
        assert result.exit_counts == counts.tolist()
        assert result.mean_depth == pytest.approx(counts @ [1, 2, 4, 5] / length)
        assert conversation.stats.exit_counts == result.exit_counts
    turns = ("prompt_ids", "generated_ids", "turn2_prompt_ids", "turn2_generated_ids")
    assert conversation.token_ids == [t for turn in turns for t in golden[turn].ravel().tolist()]


def test_golden_logits_are_those_of_the_mixture(llm: LLM, golden: dict[str, NDArray[Any]]) -> None:
    expected = golden["mix_logprobs"]
    logits = llm.logits(golden["input_ids"])
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    alone = llm.logits(golden["input_ids"][1].tolist())
    assert alone.shape == (1, *expected.shape[1:])
    np.testing.assert_allclose(alone[0], expected[1], atol=2e-4)


def test_more_sequences_than_a_batch_are_scored_in_several(
    llm: LLM, golden: dict[str, NDArray[Any]]
) -> None:
    ids = np.concatenate([golden["input_ids"]] * 3)[:5]
    assert llm.manifest.limits.max_batch == 4
    np.testing.assert_allclose(llm.logits(ids)[4], golden["mix_logprobs"][0], atol=2e-4)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.3, "top_k": 40}])
def test_a_prompt_in_a_batch_gives_what_it_gives_alone(llm: LLM, params: dict[str, Any]) -> None:
    """More prompts than a batch, of different lengths, each with its own seed and length."""
    prompts = [[1, 410, 39], [7], [300, 2, 8, 8, 8, 8, 8], [5, 6], [511], [100] * 20]
    each = [
        SamplingParams(seed=i, max_tokens=3 + 2 * i, ignore_eos=True, **params)
        for i in range(len(prompts))
    ]
    together = llm.generate(prompts, each)
    for prompt, own, result in zip(prompts, each, together, strict=True):
        assert result == llm.generate(prompt, own)[0]
    assert llm.stats.output_tokens == each[-1].max_tokens


@pytest.mark.parametrize("exit_index", range(4))
def test_forced_exits(llm: LLM, exit_index: int) -> None:
    result = run(llm, [1, 5, 9], temperature=0, routing=exit_index, max_tokens=5, ignore_eos=True)
    assert result.exits == [exit_index] * 5
    assert result.mean_depth == [1, 2, 4, 5][exit_index]


def test_seeds_repeat_and_none_does_not(llm: LLM) -> None:
    def draw(seed: int | None) -> GenerationResult:
        return run(llm, [1, 5], seed=seed, max_tokens=20, ignore_eos=True)

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(None) != draw(None)


def test_the_first_token_is_drawn_from_the_mixture(llm: LLM) -> None:
    """Routers first, token second, one generator: over many seeds that is the mixture itself."""
    mixture = np.exp(llm.logits([1, 5])[0, -1])
    params = [SamplingParams(seed=seed, max_tokens=1) for seed in range(800)]
    draws = [result.token_ids[0] for result in llm.generate([[1, 5]] * 800, params)]
    likely = np.argsort(-mixture)[:5]
    expected = mixture[likely] * 800
    counts = np.bincount(draws, minlength=512)[likely]
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()


def test_max_deferred_changes_nothing(nvium_bundle: Path, golden: dict[str, NDArray[Any]]) -> None:
    for bound in (1, 2, 7):
        with LLM(nvium_bundle, backend="onnxruntime", threads=1, max_deferred=bound) as opened:
            params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
            [result] = opened.generate(golden["prompt_ids"], params)
        assert result.token_ids == golden["generated_ids"].tolist()


def test_stats_add_up(llm: LLM) -> None:
    results = llm.generate([[1, 2, 3], [4]], GREEDY)
    stats = llm.stats
    assert (stats.prompt_tokens, stats.output_tokens) == (4, 24)
    assert stats.exit_counts is not None and sum(stats.exit_counts) == 24
    assert stats.time_to_first_token is not None
    assert 0 < stats.time_to_first_token < stats.seconds
    assert stats.tokens_per_second == pytest.approx(24 / stats.seconds)
    assert 0 < stats.python_seconds < stats.seconds
    json.dumps([asdict(stats), *map(asdict, results)])  # plain values all through


# --- streams and text ---


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5}, {"seed": 1, "stop": "e"}])
def test_a_stream_is_generate_in_pieces(text_llm: LLM, params: dict[str, Any]) -> None:
    asked = SamplingParams(max_tokens=30, **params)
    *early, last = deltas = list(text_llm.stream("The quick", asked))
    stats = text_llm.stats
    [whole] = text_llm.generate("The quick", asked)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [t for delta in deltas for t in delta.token_ids] == whole.token_ids
    assert [e for delta in deltas for e in delta.exits or []] == whole.exits
    assert {delta.finish_reason for delta in early} <= {None}
    assert {delta.output_tokens for delta in early} <= {None}
    assert (last.finish_reason, last.prompt_tokens, last.output_tokens) == (
        whole.finish_reason,
        whole.prompt_tokens,
        whole.output_tokens,
    )
    assert stats.output_tokens == whole.output_tokens


def test_text_prompts_begin_with_bos(text_llm: LLM) -> None:
    ids = text_llm.encode("The quick")
    assert ids[0] == 1 and ids.count(1) == 1
    assert text_llm.generate("The quick", GREEDY) == text_llm.generate(ids, GREEDY)
    assert text_llm.generate("", GREEDY) == text_llm.generate([1], GREEDY)


def test_a_stream_may_be_left(text_llm: LLM) -> None:
    stream = text_llm.stream("The quick", GREEDY)
    next(stream)
    del stream
    assert text_llm.stats.output_tokens == 1


def test_streams_may_interleave(text_llm: LLM) -> None:
    alone = [list(text_llm.stream(prompt, GREEDY)) for prompt in ("The", "dog")]
    both = [text_llm.stream(prompt, GREEDY) for prompt in ("The", "dog")]
    assert [list(pair) for pair in zip(*zip(*both, strict=True), strict=True)] == alone


def test_no_tokens_asked_is_no_work(text_llm: LLM) -> None:
    params = SamplingParams(max_tokens=0)
    busy = text_llm._served.model.busy_seconds
    [result] = text_llm.generate("The", params)
    assert (result.text, result.token_ids, result.finish_reason) == ("", [], "length")
    [delta] = text_llm.stream("The", params)
    assert (delta.text, delta.finish_reason, delta.output_tokens) == ("", "length", 0)
    assert text_llm._served.model.busy_seconds == busy
    assert text_llm.stats.time_to_first_token is None


def test_the_sequence_limit_ends_a_generation(text_llm: LLM) -> None:
    result = run(text_llm, [5] * 40, temperature=0, max_tokens=100, ignore_eos=True)
    assert result.output_tokens == 8 and result.finish_reason == "length"


def test_nothing_asked_nothing_given(text_llm: LLM) -> None:
    assert text_llm.generate([]) == []


def test_perplexity_of_text_counts_its_bytes(text_llm: LLM) -> None:
    """Every window begins with BOS, and every token of the text is predicted."""
    ids = text_llm.encode(TEXT)
    result = perplexity(text_llm, TEXT, window=20)
    assert result.tokens == len(ids) - 1 and result.windows == -(-result.tokens // 19)
    windows = [[1, *ids[start : start + 19]] for start in range(1, len(ids), 19)]
    nll = sum(perplexity(text_llm, window).nll for window in windows)
    assert result.nll == pytest.approx(nll, rel=1e-6)
    bits = nll / np.log(2) / len(TEXT.encode())
    assert result.bits_per_byte == pytest.approx(bits, rel=1e-6)
    assert perplexity(text_llm, TEXT).window == 48  # the bundle's limit
    with pytest.raises(RequestError, match="longer text"):
        perplexity(text_llm, "")


# --- conversations ---


def test_turns_equal_one_long_prompt(text_llm: LLM) -> None:
    """Later text gets no BOS; the parameters, routing and seed included, are each turn's own."""
    conversation = text_llm.conversation()
    said: list[int] = []
    for turn, params in enumerate(
        (
            SamplingParams(temperature=0, max_tokens=4),
            SamplingParams(seed=7, max_tokens=3, routing="argmax"),
            SamplingParams(temperature=0, max_tokens=2, routing=0),
            SamplingParams(seed=8, max_tokens=5, repetition_penalty=1.5),
        )
    ):
        result = conversation.send("dog", params)
        prompt = text_llm.encode("dog")[min(turn, 1) :]
        said += prompt
        assert result.prompt_tokens == len(prompt)
        [alone] = text_llm.generate(said, params)
        assert (result.text, result.token_ids, result.exits) == (
            alone.text,
            alone.token_ids,
            alone.exits,
        )
        said += result.token_ids
        assert conversation.token_ids == said
    assert said.count(1) == 1


def test_a_turn_feeds_only_what_is_new(text_llm: LLM) -> None:
    conversation = text_llm.conversation()
    conversation.send([5] * 20, GREEDY)
    decoder = conversation._decoder
    assert decoder is not None and decoder.lengths.tolist() == [31]
    conversation.send([6], SamplingParams(max_tokens=1))
    assert conversation._decoder is decoder and decoder.lengths.tolist() == [33]


def test_a_turn_of_no_tokens_is_heard_later(text_llm: LLM) -> None:
    conversation = text_llm.conversation()
    conversation.send([5, 6], SamplingParams(max_tokens=0))
    result = conversation.send([7], GREEDY)
    assert result.token_ids == text_llm.generate([5, 6, 7], GREEDY)[0].token_ids
    assert conversation.send([], GREEDY).output_tokens == 12  # and on, with nothing added


def test_a_streamed_turn_left_early_is_kept(text_llm: LLM) -> None:
    conversation = text_llm.conversation()
    stream = conversation.stream([5, 6], GREEDY)
    heard = [t for _ in range(3) for t in next(stream).token_ids]
    with pytest.raises(RequestError, match="still being streamed"):
        conversation.send([7], GREEDY)
    del stream
    assert conversation.token_ids == [5, 6, *heard]
    expected = text_llm.generate([5, 6, *heard, 7], GREEDY)[0].token_ids
    assert conversation.send([7], GREEDY).token_ids == expected


def test_a_failed_turn_leaves_the_conversation_as_it_was(
    text_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = text_llm.conversation()
    conversation.send([5, 6], GREEDY)
    before = conversation.token_ids
    with pytest.raises(RequestError):
        conversation.send([9999], GREEDY)
    with monkeypatch.context() as patch:
        decoder = conversation._decoder
        assert decoder is not None
        calls = iter([decoder.feed])

        def feed(token_ids: Any) -> Any:
            """One step, then Ctrl-C."""
            try:
                return next(calls)(token_ids)
            except StopIteration:
                raise KeyboardInterrupt from None

        patch.setattr(decoder, "feed", feed)
        with pytest.raises(KeyboardInterrupt):
            conversation.send([8], GREEDY)
    assert conversation.token_ids == before
    expected = text_llm.generate([*before, 7], GREEDY)[0].token_ids
    assert conversation.send([7], GREEDY).token_ids == expected


def test_a_conversation_knows_its_limit(text_llm: LLM) -> None:
    conversation = text_llm.conversation()
    conversation.send([5] * 30, GREEDY)
    with pytest.raises(RequestError, match="after 42 of earlier turns") as caught:
        conversation.send([5] * 6, GREEDY)
    assert "--max-seq-len" in caught.value.fix
    assert conversation.send([5] * 4, GREEDY).output_tokens == 2


# --- a dense model against transformers ---


def test_dense_greedy_equals_transformers(dense: tuple[LLM, LlamaForCausalLM]) -> None:
    llm, reference = dense
    prompts = [[1, 17, 230], [5], list(range(40, 70))]
    results = llm.generate(
        prompts, SamplingParams(temperature=0, max_tokens=24, repetition_penalty=1.2)
    )
    for prompt, result in zip(prompts, results, strict=True):
        whole = reference.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, repetition_penalty=1.2
        )
        assert result.token_ids == whole[0, len(prompt) :].tolist()
        assert result.exits is result.exit_counts is result.mean_depth is None


def test_dense_logits_equal_transformers(dense: tuple[LLM, LlamaForCausalLM]) -> None:
    llm, reference = dense
    ids = np.random.default_rng(0).integers(0, 300, (2, 30))
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids)).logits.numpy()
    assert np.abs(llm.logits(ids) - expected).max() <= 1e-4 * np.abs(expected).max()


def test_dense_models_refuse_what_only_exits_have(dense: tuple[LLM, LlamaForCausalLM]) -> None:
    llm, _ = dense
    for routing in ("argmax", "sample", 0):
        with pytest.raises(RequestError, match="no exits"):
            run(llm, [1], routing=routing)
    with pytest.raises(RequestError, match="nothing is deferred"):
        LLM(llm._served.model.bundle, backend="onnxruntime", max_deferred=3)


# --- opening and closing ---


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
