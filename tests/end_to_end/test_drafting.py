"""The golden HiLP checkpoint: states, drafts, lossless decoding."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quatrain.exporter import export_checkpoint
from quatrain.runtime import LLM, SamplingParams
from quatrain.runtime.decoding.speculative import SpeculativeDecoder
from quatrain.runtime.errors import RequestError
from quatrain.runtime.generation import Meter, Row
from quatrain.runtime.manifest import Manifest
from quatrain.runtime.requests import RequestReader
from quatrain.runtime.session import Model, open_model
from quatrain.runtime.speculation import generate_drafted

TOLERANCE = 1e-4  # of the largest magnitude, fp32 on both sides
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hilp"
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "golden.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hilp") / "bundle"
    export_checkpoint(GOLDEN / "checkpoint", path, weights="copy", drafter=True)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "bundle"
    export_checkpoint(GOLDEN / "checkpoint", path, weights="copy")
    return path


class FixedChooser:
    """Always drafts as many, and remembers what came of it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.accepted: list[list[int]] = []

    def choose(self) -> int:
        return self.count

    def record_round(
        self,
        num_drafted: int | Sequence[int],
        num_accepted: int | Sequence[int],
        seconds_draft: float,
        seconds_verify: float,
        num_taken: int | Sequence[int] | None = None,
    ) -> None:
        assert not isinstance(num_accepted, int)
        self.accepted.append(list(num_accepted))

    def record_plain(self, seconds: float, num_rows: int = 1) -> None:
        pass


def make_row(manifest: Manifest, prompt: list[int], params: SamplingParams) -> Row:
    request = RequestReader(manifest, None).read(prompt, params)
    return Row(request, np.random.default_rng(params.seed), None, manifest.eos_token_ids)


def generate(
    model: Model, prompts: list[list[int]], params: SamplingParams, count: int
) -> tuple[list[Row], FixedChooser]:
    rows = [make_row(model.manifest, prompt, params) for prompt in prompts]
    decoder, chooser = SpeculativeDecoder(model, len(rows)), FixedChooser(count)
    meter = Meter(lambda: 0.0)
    limit = model.manifest.limits.max_seq_len
    for _ in generate_drafted(decoder, rows, meter, chooser, limit):
        pass
    return rows, chooser


def test_states_and_drafts(golden, bundle: Path):
    ids = golden["input_ids"]
    with open_model(bundle, backend="onnxruntime") as model:
        decoder = SpeculativeDecoder(model, len(ids))
        logits = decoder.verify(ids.tolist())
        close(logits, golden["logits"])
        close(decoder._verified, golden["hidden"])
        for t in range(ids.shape[1] - 1):
            decoder._states[...] = golden["hidden"][:, t]
            decoder.start_drafting()
            decoder.draft([0, 1], ids[:, t + 1].tolist())
            close(decoder._drafted, golden["pred_hidden"][:, t])
        decoder._states[...] = golden["hidden"][:, -1]
        decoder.start_drafting()
        tokens = golden["draft_ids"][:, 0]
        for place in range(4):
            drafted = decoder.draft([0, 1], tokens.tolist())
            close(decoder._drafted, golden["draft_hidden"][:, place])
            tokens = drafted.argmax(-1)
            assert tokens.tolist() == golden["draft_ids"][:, place + 1].tolist()


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_greedy_tokens_are_those_of_plain_decoding(golden, bundle: Path, count: int):
    with open_model(bundle, backend="onnxruntime") as model:
        (row,), chooser = generate(model, golden["prompt_ids"].tolist(), GREEDY, count)
    assert row.token_ids == golden["generated_ids"].tolist()
    assert sum(accepted for (accepted,) in chooser.accepted) > 0


def test_accepted_per_round(golden, bundle: Path):
    with open_model(bundle, backend="onnxruntime") as model:
        _, chooser = generate(model, golden["prompt_ids"].tolist(), GREEDY, 4)
    accepted = [count for (count,) in chooser.accepted]
    expected = golden["accepted_per_round"].tolist()
    # The golden run drafts before its first token is taken; its last round may run past the end.
    assert accepted[: len(expected) - 1] == expected[: len(accepted)][: len(expected) - 1]


@pytest.mark.parametrize("count", [1, 4])
def test_a_batch_accepts_row_by_row(golden, bundle: Path, plain: Path, count: int):
    prompts = [golden["prompt_ids"][0].tolist(), [7], golden["input_ids"][0, :17].tolist()]
    with LLM(plain) as llm:
        expected = [list(result.token_ids) for result in llm.generate(prompts, GREEDY)]
    with open_model(bundle, backend="onnxruntime") as model:
        rows, chooser = generate(model, prompts, GREEDY, count)
    assert [row.token_ids for row in rows] == expected
    assert any(len(set(accepted)) > 1 for accepted in chooser.accepted)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8])
def test_max_tokens_inside_a_draft(golden, bundle: Path, max_tokens: int):
    params = replace(GREEDY, max_tokens=max_tokens)
    with open_model(bundle, backend="onnxruntime") as model:
        (row,), _ = generate(model, golden["prompt_ids"].tolist(), params, 8)
    assert row.token_ids == golden["generated_ids"][:max_tokens].tolist()
    assert row.finish_reason == "length"


def test_stop_tokens_inside_a_draft(golden, bundle: Path):
    """Whichever token ends the sequence, what follows it is gone, accepted or not."""
    expected = golden["generated_ids"].tolist()
    with open_model(bundle, backend="onnxruntime") as model:
        for token in sorted(set(expected)):
            params = replace(GREEDY, stop_token_ids=(token,))
            (row,), _ = generate(model, golden["prompt_ids"].tolist(), params, 4)
            assert row.token_ids == expected[: expected.index(token) + 1]
            assert row.finish_reason == "stop"


def test_the_sequence_limit_inside_a_draft(golden, tmp_path: Path):
    export_checkpoint(
        GOLDEN / "checkpoint", tmp_path / "b", drafter=True, max_seq_len=20, self_test=False
    )
    with open_model(tmp_path / "b", backend="onnxruntime") as model:
        (row,), _ = generate(model, golden["prompt_ids"].tolist(), GREEDY, 8)
    # 12 tokens of prompt, and the last token generated is not fed any more.
    assert row.token_ids == golden["generated_ids"][: len(row.token_ids)].tolist()
    assert len(row.token_ids) in (8, 9)


@pytest.mark.parametrize("chunk", [1, 3])
def test_short_chunks(golden, tmp_path: Path, chunk: int):
    """A round longer than a chunk takes several calls."""
    export_checkpoint(
        GOLDEN / "checkpoint", tmp_path / "b", drafter=True, prefill_chunk=chunk, self_test=False
    )
    with open_model(tmp_path / "b", backend="onnxruntime") as model:
        (row,), _ = generate(model, golden["prompt_ids"].tolist(), GREEDY, 4)
    assert row.token_ids == golden["generated_ids"].tolist()


@pytest.mark.parametrize("draft", ["auto", None, 0, 1, 4, 8])
def test_an_llm_gives_the_same_tokens_however_it_drafts(golden, bundle: Path, draft):
    prompt = golden["prompt_ids"][0].tolist()
    with LLM(bundle, draft=draft) as llm:
        (result,) = llm.generate([prompt], GREEDY)
        streamed = [t for delta in llm.stream(prompt, GREEDY) for t in delta.token_ids]
        conversation = llm.conversation()
        first = conversation.send(prompt, replace(GREEDY, max_tokens=15))
        second = conversation.send(
            golden["generated_ids"][15:20].tolist(), replace(GREEDY, max_tokens=20)
        )
    expected = golden["generated_ids"].tolist()
    assert list(result.token_ids) == streamed == expected
    assert list(first.token_ids) == expected[:15]
    assert list(second.token_ids) == expected[20:40]


def test_draws_with_a_seed_repeat(golden, bundle: Path):
    prompts = [golden["prompt_ids"][0].tolist(), [5, 9]]
    params = SamplingParams(temperature=0.9, top_k=40, seed=3, max_tokens=20)
    runs = []
    for _ in range(2):
        with LLM(bundle) as llm:
            runs.append([list(result.token_ids) for result in llm.generate(prompts, params)])
    with LLM(bundle) as llm:
        alone = [list(llm.generate([prompt], params)[0].token_ids) for prompt in prompts]
    assert runs[0] == runs[1] == alone


def test_more_than_the_profile_allows(bundle: Path):
    with pytest.raises(RequestError, match="9"):
        LLM(bundle, draft=9)


def test_host_embeddings_draft_the_same(golden, tmp_path: Path):
    export_checkpoint(
        GOLDEN / "checkpoint", tmp_path / "b", drafter=True, embeddings="host", self_test=False
    )
    with open_model(tmp_path / "b", backend="onnxruntime") as model:
        (row,), chooser = generate(model, golden["prompt_ids"].tolist(), GREEDY, 4)
    assert row.token_ids == golden["generated_ids"].tolist()
    assert sum(accepted for (accepted,) in chooser.accepted) > 0


def test_without_a_drafter_the_bundle_is_a_plain_decoders(plain: Path, tmp_path: Path):
    """Node for node and byte for byte, whatever else lies in the checkpoint."""
    stripped = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN / "checkpoint", stripped)
    config = json.loads((stripped / "config.json").read_text())
    del config["hilp"]
    (stripped / "config.json").write_text(json.dumps(config))
    strip_weights(stripped / "model.safetensors")
    export_checkpoint(stripped, tmp_path / "b", weights="copy")
    import onnx

    names = sorted(path.name for path in (tmp_path / "b").glob("*.onnx"))
    assert sorted(path.name for path in plain.glob("*.onnx")) == names
    for name in names:
        graphs = [
            onnx.load(folder / name, load_external_data=False).graph
            for folder in (plain, tmp_path / "b")
        ]
        assert [len(graph.node) for graph in graphs] == [len(graphs[0].node)] * 2
        assert graphs[0].node == graphs[1].node
        assert graphs[0].output == graphs[1].output
        sizes = [
            sum(int(e.value) for i in g.initializer for e in i.external_data if e.key == "length")
            for g in graphs
        ]
        assert sizes[0] == sizes[1] > 0


def strip_weights(path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = {
        name: tensor
        for name, tensor in load_file(path).items()
        if name.startswith("model.") or name == "lm_head.weight"
    }
    save_file(tensors, path)
