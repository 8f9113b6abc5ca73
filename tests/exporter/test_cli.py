"""The command line: its flags, its two kinds of output, and its exit statuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path

import pytest
from tests.exporter.checkpoint.folders import BACKBONE, random_tensors, write_checkpoint

from quatrain.exporter.cli import COMMANDS, main, make_parser
from quatrain.exporter.commands.console import Console
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.inspection import inspect_checkpoint
from quatrain.exporter.spec import DecoderSpec, Streams
from quatrain.exporter.targets import TARGETS
from quatrain.runtime.errors import BundleError
from quatrain.runtime.manifest import load_manifest

QUATRAIN = [sys.executable, "-m", "quatrain.exporter.cli"]


def run_quatrain(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QUATRAIN, *map(str, words)], capture_output=True, text=True, timeout=120
    )


def read_flags(*words: str) -> dict[str, object]:
    """What a command passes on when nothing is asked but what it needs."""
    flags = vars(make_parser(words).parse_args(words))
    return {name: flags[name] for name in flags if name not in {"json", "run", "command"}}


def read_parameters(function: Callable[..., object]) -> dict[str, object]:
    parameters = signature(function).parameters.values()
    return {p.name: None if p.default is Parameter.empty else p.default for p in parameters}


def plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


# --- flags are parameters ---


def test_export_flags_are_the_parameters_of_export_checkpoint() -> None:
    flags = read_flags("export", "checkpoint", "-o", "bundle")
    parameters = read_parameters(export_checkpoint)
    assert flags.keys() - parameters.keys() == {"dry_run"}
    assert parameters.keys() - flags.keys() == {"progress"}
    for name in flags.keys() - {"dry_run", "checkpoint", "output"}:
        assert flags[name] == plain(parameters[name]), name


def test_build_flags_are_the_parameters_of_build_engines() -> None:
    flags = read_flags("build", "bundle", "--target", "a100")
    assert flags.keys() == read_parameters(build_engines).keys() - {"progress"}


def test_generate_flags_are_the_parameters_of_llm_and_sampling() -> None:
    from quatrain.runtime import LLM, SamplingParams

    flags = read_flags("generate", "bundle")
    parameters = read_parameters(LLM) | read_parameters(SamplingParams)
    assert flags.keys() - parameters.keys() == {"prompts", "stats"}
    assert parameters.keys() - flags.keys() == {"verify"}
    for name in flags.keys() - {"prompts", "stats", "bundle"}:
        assert flags[name] == plain(parameters[name]), name


def test_perplexity_flags_are_its_parameters() -> None:
    from quatrain.runtime import perplexity

    flags = read_flags("perplexity", "bundle", "--text", "text.txt")
    assert flags.keys() >= read_parameters(perplexity).keys() - {"llm", "progress"}


def test_compare_flags_are_the_parameters_of_compare_bundle() -> None:
    from quatrain.exporter.comparison import compare_bundle

    flags = read_flags("compare", "bundle", "checkpoint")
    parameters = read_parameters(compare_bundle)
    assert flags.keys() - parameters.keys() == {"html"}
    assert parameters.keys() - flags.keys() == {"progress"}
    assert flags["runners"] is None  # each --runner adds some; without any it is the default
    for name in flags.keys() - {"html", "runners", "bundle", "checkpoint"}:
        assert flags[name] == plain(parameters[name]), name


def test_bench_flags_are_its_parameters_and_settings() -> None:
    from quatrain.exporter.bench import BenchSetting, bench_bundles

    flags = read_flags("bench", "bundle")
    settings = BenchSetting()
    own = {"markdown", "plot"}
    parameters = read_parameters(bench_bundles).keys() - {"setting", "say"}
    assert flags.keys() - own == parameters | set(BenchSetting.__dataclass_fields__)
    for name in BenchSetting.__dataclass_fields__:
        value = getattr(settings, name)
        assert flags[name] == (list(value) if isinstance(value, tuple) else value), name


def test_plan_flags_are_the_parameters_of_both_its_halves() -> None:
    from quatrain.exporter.capacity import plan_capacity
    from quatrain.exporter.capacity.model import open_planned

    flags = read_flags("plan", "path")
    parameters = read_parameters(plan_capacity).keys() | read_parameters(open_planned).keys()
    assert flags.keys() - {"path"} <= parameters
    assert parameters - {"model", "checkpoint"} <= flags.keys()


def test_inspect_flags_are_the_parameters_of_inspect_checkpoint() -> None:
    flags = read_flags("inspect", "checkpoint")
    diagnosis = {"activations", "tokens", "plot"}
    assert flags.keys() - diagnosis == read_parameters(inspect_checkpoint).keys() - {"progress"}


def test_target_takes_several_names_at_once_and_again() -> None:
    words = ["build", "bundle", "--target", "a100", "a6000", "--target", "rtx3090"]
    assert make_parser(words).parse_args(words).targets == ["a100", "a6000", "rtx3090"]


def test_help_of_target_names_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["build", "--help"])
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ", ".join(target.name for target in TARGETS) in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = "from quatrain.exporter.cli import main; import sys\ntry: main(['--help'])\n"
    code += "except SystemExit: print(*sys.modules, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(command in run.stdout for command in COMMANDS)
    loaded = set(run.stderr.split())
    assert not loaded & {"numpy", "msgspec", "onnx", "onnxruntime", "onnxscript", "rich", "ctypes"}


def test_version_names_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:2] == ["quatrain", "onnxruntime"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nothing"],
        ["export", "checkpoint"],
        ["export", "checkpoint", "-o", "bundle", "--dtyp", "float32"],
        ["export", "checkpoint", "-o", "bundle", "--dtype", "int4"],
        ["generate", "bundle", "--prompt-ids", "1,two"],
        ["generate", "bundle", "--routing", "random"],
        ["build", "bundle"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("usage: quatrain")


# --- outcomes ---


def test_a_user_error_has_three_parts_and_no_trace(tmp_path: Path) -> None:
    run = run_quatrain("inspect", tmp_path / "nothing")
    assert run.returncode == 1
    assert run.stdout == ""
    assert [line.split(":")[0] for line in run.stderr.splitlines()] == ["asked", "found", "fix"]


def test_a_user_error_as_json_is_one_document(tmp_path: Path) -> None:
    run = run_quatrain("inspect", tmp_path / "nothing", "--json")
    assert run.returncode == 1
    error = json.loads(run.stdout)["error"]
    assert set(error) == {"asked", "found", "fix"} and "nothing" in error["asked"]
    assert "Traceback" not in run.stderr


def test_a_file_name_that_is_no_text_makes_an_error_like_any_other(tmp_path: Path) -> None:
    run = run_quatrain("inspect", os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), "--json")
    assert run.returncode == 1
    assert "\udcff" in json.loads(run.stdout)["error"]["asked"]


def replace_command(monkeypatch: pytest.MonkeyPatch, body: Callable[[Console], int]) -> None:
    """Make `quatrain doctor` do something else."""
    from quatrain.exporter.commands import doctor

    monkeypatch.setattr(doctor, "run", lambda args, console: body(console))


def fail_with(error: BaseException) -> Callable[[Console], int]:
    def body(console: Console) -> int:
        raise error

    return body


def test_ctrl_c_exits_130_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, fail_with(KeyboardInterrupt()))
    assert main(["doctor", "--json"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "quatrain: interrupted\n"


def test_a_missing_package_names_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, fail_with(ModuleNotFoundError("no", name="onnxscript.nn")))
    assert main(["doctor"]) == 1
    assert "pip install 'quatrain[export]'" in capsys.readouterr().err


def test_a_full_disk_is_a_user_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, fail_with(OSError(28, "No space left on device")))
    assert main(["doctor"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_an_internal_error_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_command(monkeypatch, fail_with(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_a_user_error_in_a_command_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, fail_with(BundleError("a", "b", "c")))
    assert main(["doctor", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": {"asked": "a", "found": "b", "fix": "c"}}
    assert captured.err == "asked: a\nfound: b\nfix:   c\n"


def test_a_reader_that_goes_away_is_no_error_of_ours(nvium_checkpoint: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [*QUATRAIN, "inspect", str(nvium_checkpoint)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writing)
    assert run.returncode == 128 + signal.SIGPIPE
    assert run.stderr == ""


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", "2>&-", "2>/dev/full", ">&- 2>&-"])
def test_streams_that_cannot_be_written(
    redirection: str, nvium_checkpoint: Path, tmp_path: Path
) -> None:
    words = ["bash", "-c", f'"$@" {redirection}', "-", *QUATRAIN]
    words += ["export", str(nvium_checkpoint), "-o", str(tmp_path / "bundle"), "--json"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in run.stderr
    assert run.returncode == (1 if redirection == ">/dev/full" else 0)
    if ">&-" not in redirection.split() and redirection != ">/dev/full":
        assert json.loads(run.stdout)["weights"] in ("link", "copy")


# --- export and inspect, for real ---


def test_a_dry_run_writes_nothing(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bundle"
    words = ["export", str(nvium_checkpoint), "-o", str(output), "--dry-run", "--json"]
    assert main(words) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["family"], plan["max_batch"], plan["dtype"]) == ("nvium", 4, "bfloat16")
    assert (plan["embeddings"], plan["prefill_chunk"]) == ("graph", 256)
    assert [bill["embeddings"] for bill in plan["weights"]] == ["graph", "host"]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_both_bills(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(nvium_checkpoint), "-o", str(tmp_path / "bundle"), "--dry-run"]
    assert main([*words, "--embeddings", "host"]) == 0
    shown = capsys.readouterr().out.splitlines()
    graph, host = (line for line in shown if "--embeddings" in line)
    assert "0 B on the host" in graph and "chosen" not in graph
    assert "65.5 kB on the host (1 table)" in host and "chosen" in host
    assert any("1.25 KiB a token" in line for line in shown)


def test_export_tells_its_plan_its_stages_and_its_result(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bundle"
    words = ["export", str(nvium_checkpoint), "-o", str(output), "--weights", "copy"]
    assert main([*words, "--no-self-test", "--max-seq-len", "64"]) == 0
    captured = capsys.readouterr()
    assert "write graphs" in captured.out and "peak memory" in captured.out
    assert ["max_seq_len", "64"] in [line.split() for line in captured.err.splitlines()]
    assert load_manifest(output).limits.max_seq_len == 64
    assert main(words) == 1  # it is there already
    assert "--overwrite" in capsys.readouterr().err


def test_inspect_prints_the_manifest_of_a_bundle(
    nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(nvium_bundle), "--json", "--check-weights"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (nvium_bundle / "manifest.json").read_text()
    assert "every file" in captured.err
    assert main(["inspect", str(nvium_bundle)]) == 0
    shown = capsys.readouterr().out
    assert "nvium bundle" in shown and "segment_3" in shown
    assert "in the graph, 1 row a token" in shown
    assert "1.25 KiB a token in bfloat16" in shown
    assert any(line.split()[:4] == ["0-4", "tokens", "4", "16"] for line in shown.splitlines())


def test_inspect_shows_streams_and_embeddings_on_the_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = random_tensors(DecoderSpec(BACKBONE, streams=Streams(4)))
    source = write_checkpoint(tmp_path / "checkpoint", tensors, scale_seq_times=3)
    assert main(["inspect", str(source)]) == 0
    shown = capsys.readouterr().out
    assert "384 B a token: 4 rows of 96 B" in shown
    assert "6.1 kB on the host (4 tables)" in shown
    bundle = tmp_path / "bundle"
    export_checkpoint(source, bundle, embeddings="host", self_test=False)
    assert main(["inspect", str(bundle)]) == 0
    shown = capsys.readouterr().out
    assert "on the host, 4 rows a token: 4 tables" in shown
    assert any(line.split()[:3] == ["0-2", "rows", "2"] for line in shown.splitlines())


def test_inspect_names_weights_that_are_not_finite(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "checkpoint"
    shutil.copytree(nvium_checkpoint, broken)
    data = bytearray((broken / "model.safetensors").read_bytes())
    data[-2:] = b"\xff\x7f"  # a NaN in bfloat16
    (broken / "model.safetensors").write_bytes(data)
    assert main(["inspect", str(broken)]) == 0
    assert main(["inspect", str(broken), "--check-weights"]) == 1
    assert "1 NaN, 0 Inf" in capsys.readouterr().out
    assert main(["inspect", str(broken), "--check-weights", "--json"]) == 1
    (bad,) = json.loads(capsys.readouterr().out)["bad_weights"]
    assert bad["num_nan"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_export_and_leaves_nothing(
    number: signal.Signals, nvium_checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out" / "bundle"
    with subprocess.Popen(
        [*QUATRAIN, "export", str(nvium_checkpoint), "-o", str(output)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("write graphs"):
                process.send_signal(number)
                break
        rest = process.stderr.read()
        assert process.wait(60) == 128 + number
    assert "Traceback" not in rest
    assert list(output.parent.iterdir()) == []


# --- generate, perplexity and doctor, for real ---


def test_generate_prints_one_document_of_results_and_stats(
    nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(nvium_bundle), "--prompt-ids", "1,2,3", "--prompt-ids", "4,5"]
    assert main([*words, "--temperature", "0", "--max-tokens", "6", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert set(document) == {"results", "stats"}
    assert [result["prompt_tokens"] for result in document["results"]] == [3, 2]
    for result in document["results"]:
        keys = {"text", "token_ids", "finish_reason", "prompt_tokens", "output_tokens", "exits"}
        assert keys <= set(result)
        assert len(result["exits"]) == len(result["token_ids"]) == result["output_tokens"]
    assert document["stats"]["tokens_per_second"] > 0
    assert "routing argmax" in captured.err


def test_generate_streams_one_prompt_and_tells_stats(
    nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(nvium_bundle), "--prompt-ids", "1,2,3", "--temperature", "0"]
    assert main([*words, "--max-tokens", "6", "--json"]) == 0
    ids = json.loads(capsys.readouterr().out)["results"][0]["token_ids"]
    assert main([*words, "--max-tokens", "6", "--stats"]) == 0
    captured = capsys.readouterr()
    assert [int(token) for token in captured.out.split()] == ids  # it has no tokenizer
    assert "tokens/s" in captured.err and "layers deep" in captured.err


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ([], "none was given"),
        (["--prompt", "text"], "no tokenizer"),
        (["--prompt-ids", "1,512"], "from 0 to 511"),
        (["--prompt-ids", ""], "no token to begin with"),
        (["--prompt-file", "missing.txt"], "No such file"),
        (["--prompt-ids", "1", "--temperature", "nan"], "finite number"),
        (["--prompt-ids", "1", "--routing", "4"], "exits 0 to 3"),
        (["--prompt-ids", "1", "--threads", "0"], "threads"),
        (["--prompt-ids", "1", "--backend", "tensorrt"], "engine"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_generate_refuses_what_it_cannot_do(
    flags: list[str], found: str, nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(nvium_bundle), *flags]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert found in captured.err and captured.err.count("asked: ") == 1


def test_a_prompt_file_must_be_utf8(
    nvium_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"caf\xe9")
    assert main(["generate", str(nvium_bundle), "--prompt-file", str(path)]) == 1
    assert "not UTF-8" in capsys.readouterr().err


def test_doctor_reports_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [target["name"] for target in document["targets"]] == [t.name for t in TARGETS]
    assert document["bundle"] is None
    assert main(["doctor"]) == 0
    assert "Targets" in capsys.readouterr().out


def test_doctor_tests_a_bundle(
    nvium_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(nvium_bundle, bundle)
    assert main(["doctor", str(bundle)]) == 0
    out = capsys.readouterr().out
    assert "its self-test passes" in out and "compared with its checkpoint: no" in out
    path = next((bundle / "weights").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["doctor", str(bundle)]) == 1
    assert "SHA-256" in capsys.readouterr().err


@pytest.mark.slow
def test_build_adds_engines(
    nvium_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(nvium_bundle, bundle)
    assert main(["build", str(bundle), "--target", "a6000", "rtx3090", "--json"]) == 0
    captured = capsys.readouterr()
    engines = json.loads(captured.out)["engines"]
    graphs = {graph.name for graph in load_manifest(bundle).graphs}
    assert {(e["graph"], e["target"], e["sm"]) for e in engines} == {
        (graph, target, "8.6") for graph in graphs for target in ("a6000", "rtx3090")
    }
    assert "peak memory" in captured.err
    assert main(["inspect", str(bundle)]) == 0
    assert "rtx3090" in capsys.readouterr().out


def run_on_a_device(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run quatrain as installed without extras: none of their packages can be imported."""
    absent = ("onnx", "onnx_ir", "onnxscript", "yaml", "rich", "ml_dtypes", "tensorrt_rtx", "torch")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "from quatrain.exporter.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=60
    )


def test_a_device_needs_no_extras(nvium_bundle: Path, nvium_checkpoint: Path) -> None:
    generate = ["generate", nvium_bundle, "--prompt-ids", "1,2,3", "--max-tokens", "2"]
    for words in (generate, ["inspect", nvium_bundle], ["doctor", nvium_bundle]):
        run = run_on_a_device(*words)
        assert run.returncode == 0, run.stderr
    run = run_on_a_device("inspect", nvium_checkpoint)
    assert run.returncode == 1
    assert "pip install 'quatrain[export]'" in run.stderr
