"""`bench_bundles` and `quatrain bench` on real bundles; what is not a time is held to the truth."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from quatrain.exporter.bench import BenchSetting, bench_bundles
from quatrain.exporter.bench.report import find_percentile
from quatrain.exporter.bench.worker import Worker
from quatrain.exporter.cli import main
from quatrain.exporter.export import export_checkpoint
from quatrain.runtime.errors import QuatrainError, RequestError

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


def test_sessions_come_out_of_the_cache_that_was_asked_for(bundles, tmp_path, capfd):
    words = ["bench", str(bundles / "dense"), "--prompt-tokens", "4", "--new-tokens", "3"]
    words += ["--repeats", "1", "--warm-ups", "0", "--threads", "1", "--json"]

    assert main([*words, "--session-cache", str(tmp_path / "cache")]) == 0

    assert json.loads(capfd.readouterr().out)["runs"]
    assert [path.name for path in (tmp_path / "cache").glob("*/model.onnx")] == ["model.onnx"]


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


def test_the_baseline_may_be_named_in_another_way(bundles, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(bundles / "nvium")

    report = bench_bundles([bundles / "dense", bundles / "nvium"], SHORT, baseline=link)

    assert report.baseline == str(bundles / "nvium")
    assert report.runs[1].ratios is None and report.runs[0].ratios is not None


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_text_without_words_is_refused(text, bundles, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(text)

    with pytest.raises(RequestError, match="no word in it"):
        bench_bundles([bundles / "dense"], SHORT, text=file)


def test_the_peak_is_that_of_the_bundle_and_not_of_who_asks(bundles):
    """The kernel hands the peak of a process on to those it starts."""
    script = (
        "import numpy as np, sys; from pathlib import Path;"
        " from quatrain.exporter.bench import BenchSetting, bench_bundles;"
        " large = np.ones(1 << 26); del large;"
        " setting = BenchSetting((8,), new_tokens=2, repeats=1, warm_ups=0, threads=1);"
        " print(bench_bundles([Path(sys.argv[1])], setting).runs[0].peak_rss_bytes)"
    )
    command = [sys.executable, "-c", script, str(bundles / "dense")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert 20_000_000 < int(done.stdout) < 400_000_000


def test_a_process_that_dies_is_named_and_leaves_nothing(bundles):
    setting = BenchSetting((8,), new_tokens=50, repeats=1000, threads=1)
    before = list_children()

    def kill_the_child():
        while not (started := list_children() - before):
            time.sleep(0.02)
        time.sleep(1.0)
        os.kill(started.pop(), signal.SIGKILL)

    killer = threading.Thread(target=kill_the_child)
    killer.start()
    with pytest.raises(QuatrainError, match="its process ended with status -9"):
        bench_bundles([bundles / "dense"], setting)
    killer.join()
    assert list_children() == before


def test_half_an_answer_is_none(bundles):
    with Worker(bundles / "dense", SHORT) as worker:
        worker._process.stdout.close()
        read, write = os.pipe()
        os.write(write, b'{"first_seconds": 0.1, "step')
        os.close(write)
        worker._process.stdout = os.fdopen(read)
        worker._process.kill()
        with pytest.raises(QuatrainError, match="its process ended"):
            worker._ask({})


def list_children() -> set[int]:
    """Processes that this one started, ended ones that nobody has waited for included."""
    path = Path(f"/proc/{os.getpid()}/task")
    return {int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()}


def test_ctrl_c_ends_all_without_traces(bundles):
    command = [sys.executable, "-m", "quatrain.exporter.cli", "bench", str(bundles / "dense")]
    command += ["--new-tokens", "40", "--prompt-tokens", "8", "--repeats", "100000"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    while "round 1" not in process.stderr.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)

    out, err = process.communicate(timeout=30)

    assert process.returncode == 130 and out == ""
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.05)


def test_a_quantized_bundle_says_so(tmp_path, capfd):
    bundle = tmp_path / "bundle"
    export_checkpoint(SAMPLES / "topics-dense", bundle, self_test=False, quantize="int4")

    assert bench_bundles([bundle], SHORT).runs[0].quantized == "int4"
    assert main(["inspect", str(bundle)]) == 0
    assert "projections as int4, heads as int8, a scale for 32 weights" in capfd.readouterr().out
    assert main(["plan", str(bundle)]) == 0
    assert "projections as int4" in capfd.readouterr().out


def test_a_plot_that_could_not_be_written_is_refused_before_anything_runs(bundles, tmp_path, capfd):
    (tmp_path / "folder.svg").mkdir()
    for path in ("plot.pdf", "missing/plot.svg", "folder.svg"):
        assert main(["bench", str(bundles / "dense"), "--plot", str(tmp_path / path)]) == 1
        assert "--plot" in capfd.readouterr().err


def test_a_percentile_is_one_of_the_values():
    values = [5.0, 1.0, 2.0, 4.0, 3.0]

    assert find_percentile(values, 0.5) == 3
    assert find_percentile(values, 0.95) == 5
    assert find_percentile([7.0], 0.5) == 7
