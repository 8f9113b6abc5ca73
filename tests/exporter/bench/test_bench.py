"""`bench_bundles` and `quatrain bench` on real bundles; what is not a time is held to the truth."""

import json
from pathlib import Path

import pytest

from quatrain.exporter.bench import BenchSetting, bench_bundles
from quatrain.exporter.bench.report import find_percentile
from quatrain.exporter.cli import main
from quatrain.exporter.export import export_checkpoint
from quatrain.runtime.errors import RequestError

SAMPLES = Path(__file__).parents[3] / "samples" / "checkpoints"
SHORT = BenchSetting((8,), new_tokens=6, repeats=2, warm_ups=0, threads=1)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    for name, options in (("dense", {}), ("nvium", {}), ("hilp", {"drafter": True})):
        source = SAMPLES / f"topics-{name}"
        export_checkpoint(source, folder / name, self_test=False, max_seq_len=64, **options)
    return folder


def test_bundles_are_measured_in_turns(bundles):
    paths = [bundles / name for name in ("dense", "nvium", "hilp")]
    said = []

    report = bench_bundles(paths, SHORT, say=said.append)

    dense, nvium, hilp = report.runs
    assert [run.family for run in report.runs] == ["dense", "nvium", "hilp"]
    assert dense.ratios is None and nvium.ratios is not None
    assert min(run.tokens_per_second for run in report.runs) > 0
    assert dense.token_ms_p50 <= dense.token_ms_p95
    assert dense.exit_shares is None and sum(nvium.exit_shares) == pytest.approx(1)
    assert 0 < nvium.mean_depth <= 8
    assert dense.accepted_per_step is None and hilp.accepted_per_step >= 1
    assert dense.peak_rss_bytes > 20_000_000 and dense.bytes_per_token > 1_000_000
    rounds = [line.split(":")[0] for line in said if "round" in line]
    order = [(line.split()[3].strip(","), Path(line.split()[4]).name) for line in rounds]
    assert order[:3] == [("1", "nvium"), ("1", "hilp"), ("1", "dense")]
    assert order[3:] == [("2", "hilp"), ("2", "dense"), ("2", "nvium")]


def test_bundles_of_one_model_agree_on_all_tokens(bundles, tmp_path):
    again = tmp_path / "again"
    export_checkpoint(
        SAMPLES / "topics-dense", again, self_test=False, max_seq_len=64, embeddings="host"
    )

    report = bench_bundles([bundles / "dense", again], SHORT, baseline=again)

    assert report.same_tokens == [6]
    assert report.runs[1].ratios is None and report.runs[0].ratios is not None


def test_the_command_prints_one_document_or_markdown_and_draws(bundles, tmp_path, capfd):
    words = ["bench", str(bundles / "dense"), "--prompt-tokens", "4", "9", "--new-tokens", "3"]
    words += ["--repeats", "1", "--warm-ups", "0", "--threads", "1"]

    assert main([*words, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [run["prompt_tokens"] for run in document["runs"]] == [4, 9]
    assert {"bundle", "tokens_per_second", "time_to_first_token_ms", "peak_rss_bytes"} <= (
        document["runs"][0].keys()
    )

    plot = tmp_path / "plot.svg"
    assert main([*words, "--markdown", "--plot", str(plot)]) == 0
    assert "| 4+3 |" in capfd.readouterr().out
    assert "tokens/s" in plot.read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_tokens": (64,)}, "exported for sequences of 64 tokens"),
        ({"prompt_tokens": ()}, "nothing to measure"),
        ({"prompt_tokens": (0,)}, "nothing to measure"),
        ({"new_tokens": 1}, "no step to time"),
        ({"batch": 5}, "batches of 1 to 4"),
        ({"repeats": 0}, "nothing to measure"),
        ({"warm_ups": -1}, "no number of runs"),
        ({"threads": 4096}, "cores"),
        ({"draft": 99}, "at most 8"),
    ],
)
def test_what_cannot_be_measured_is_refused(bundles, change, words):
    fields = {name: getattr(SHORT, name) for name in BenchSetting.__dataclass_fields__}

    with pytest.raises(RequestError, match=words):
        bench_bundles([bundles / "hilp"], BenchSetting(**fields | change))


def test_bundles_are_named_once_and_the_baseline_is_among_them(bundles):
    dense = bundles / "dense"
    with pytest.raises(RequestError, match="no bundle"):
        bench_bundles([])
    with pytest.raises(RequestError, match="told apart"):
        bench_bundles([dense, dense])
    with pytest.raises(RequestError, match="not among"):
        bench_bundles([dense], baseline=bundles / "nvium")


def test_a_plot_that_could_not_be_written_is_refused_before_anything_runs(bundles, tmp_path, capfd):
    for path in ("plot.png", "missing/plot.svg"):
        assert main(["bench", str(bundles / "dense"), "--plot", str(tmp_path / path)]) == 1
        assert "--plot" in capfd.readouterr().err


def test_a_percentile_is_one_of_the_values():
    values = [5.0, 1.0, 2.0, 4.0, 3.0]

    assert find_percentile(values, 0.5) == 3
    assert find_percentile(values, 0.95) == 5
    assert find_percentile([7.0], 0.5) == 7
