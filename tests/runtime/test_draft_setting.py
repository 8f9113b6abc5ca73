"""`draft` of `LLM`: what is asked, and what the bundle can do."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.exporter.checkpoint.folders import BACKBONE, random_tensors, write_checkpoint

from quatrain.exporter import export_checkpoint
from quatrain.exporter.spec import DecoderSpec, Drafter
from quatrain.runtime import LLM, DraftStatistics, RequestError, SamplingParams
from quatrain.runtime.draft_setting import settle_draft
from quatrain.runtime.manifest import Manifest, load_manifest

GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
PROMPTS = [[5, 9, 1, 30], [7, 7]]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose guesses are wrong."""
    folder = tmp_path_factory.mktemp("drafts")
    tensors = random_tensors(DecoderSpec(BACKBONE, drafter=Drafter("glu_cross", 20)))
    write_checkpoint(folder / "checkpoint", tensors, hilp={"drafter": "glu_cross"})
    export_checkpoint(folder / "checkpoint", folder / "bundle", drafter=True, max_draft=4)
    return folder / "bundle"


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> Manifest:
    return load_manifest(bundle)


@pytest.fixture(scope="module")
def plain(bundle: Path) -> Iterator[LLM]:
    with LLM(bundle, threads=1, draft=0) as llm:
        yield llm


@pytest.mark.parametrize(
    ("draft", "settled"), [("auto", "auto"), (1, 1), (4, 4), (0, None), (None, None)]
)
def test_what_a_drafter_can_be_asked(manifest: Manifest, draft: object, settled: object) -> None:
    assert settle_draft(draft, manifest) == settled  # type: ignore[arg-type]


@pytest.mark.parametrize("draft", [5, 1000, -1, 2.0, True, False, "4", "", [1]])
def test_what_it_cannot(manifest: Manifest, draft: object) -> None:
    with pytest.raises(RequestError) as caught:
        settle_draft(draft, manifest)  # type: ignore[arg-type]
    assert caught.value.asked == f"draft={draft!r}"
    assert "from 1 to 4" in caught.value.fix


@pytest.mark.parametrize("draft", ["auto", 0, None])
def test_without_a_drafter_nothing_is_drafted(manifest: Manifest, draft: object) -> None:
    without = msgspec.structs.replace(manifest, drafter=None, family="dense")
    assert settle_draft(draft, without) is None  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"draft=2\n.*\(dense\) has no drafter\n.*--drafter"):
        settle_draft(2, without)


def test_a_number_beyond_the_profile_is_refused_on_opening(bundle: Path) -> None:
    with pytest.raises(RequestError, match=r"draft=5\n.*at most 4 tokens.*\n.*--max-draft"):
        LLM(bundle, draft=5)


def generate(llm: LLM, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [result.token_ids for result in llm.generate(PROMPTS, params)]


def read_statistics(llm: LLM) -> DraftStatistics:
    assert llm.stats.draft is not None
    return llm.stats.draft


def test_no_drafting_has_no_statistics(plain: LLM) -> None:
    generate(plain)
    assert plain.stats.draft is None


@pytest.mark.parametrize("draft", [1, 4])
def test_a_number_is_drafted_always(bundle: Path, plain: LLM, draft: int) -> None:
    with LLM(bundle, threads=1, draft=draft) as llm:
        assert generate(llm) == generate(plain)
        statistics = read_statistics(llm)
        assert len(statistics.acceptance) == draft
        assert statistics.off_share == 0 and statistics.rounds > statistics.plain_steps
        # The first token of each sequence is not drafted.
        [period] = statistics.periods
        assert period.is_on and period.tokens == 2 * 29
        generate(llm)
        assert read_statistics(llm).periods[0].tokens == 2 * 29  # of one call, not of both


def test_auto_goes_off_where_guesses_are_wrong(bundle: Path, plain: LLM) -> None:
    with LLM(bundle, threads=1) as llm:
        for _ in range(3):
            assert generate(llm) == generate(plain)
        statistics = read_statistics(llm)
        assert sum(period.tokens for period in statistics.periods) == 2 * 29
        assert statistics.off_share > 0.5
        assert statistics.speedup is not None


def test_drawn_tokens_that_are_to_be_repeatable_do_not_depend_on_the_clock(
    bundle: Path, plain: LLM
) -> None:
    params = SamplingParams(seed=3, max_tokens=20, ignore_eos=True)
    with LLM(bundle, threads=1) as llm:
        assert generate(llm, params) == generate(plain, params)
        assert read_statistics(llm).off_share == 1.0
        generate(llm, SamplingParams(max_tokens=20, ignore_eos=True))
        assert read_statistics(llm).rounds > 0


def test_each_turn_of_a_conversation_has_its_own_statistics(bundle: Path) -> None:
    with LLM(bundle, threads=1, draft=2) as llm:
        conversation = llm.conversation()
        for _ in range(2):
            conversation.send([4, 5], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
            assert conversation.stats.draft is not None
            assert sum(period.tokens for period in conversation.stats.draft.periods) == 8
