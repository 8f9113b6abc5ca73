"""--drafter: a HiLP or NextLat model with its dynamics, or the plain decoder that it also is."""

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    random_tensors,
    write_checkpoint,
    write_dense,
)

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.cli import main
from quatrain.exporter.drafter_choice import choose_drafter
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.exporter.progress import Progress
from quatrain.exporter.spec import DecoderSpec, Drafter
from quatrain.runtime.manifest import DraftLayout, load_manifest

DRAFTER = Drafter("glu_cross", 20)
HILP = {"drafter": "glu_cross", "window": 4}
# Bytes in bfloat16 of two crossed matrices and three of the SwiGLU, and of a table.
DYNAMICS_BYTES = (2 * 16 * 16 + 3 * 16 * 20) * 2
TABLE_BYTES = 48 * 16 * 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = random_tensors(DecoderSpec(BACKBONE, drafter=DRAFTER))
    tensors |= {"swa.norm.weight": tensors["model.norm.weight"]}
    return write_checkpoint(tmp_path_factory.mktemp("hilp") / "checkpoint", tensors, hilp=HILP)


def test_the_choice(checkpoint: Path) -> None:
    opened = open_checkpoint(checkpoint)
    assert opened.spec.drafter == DRAFTER
    assert choose_drafter(opened, is_asked=True) is opened
    plain = choose_drafter(opened, is_asked=False)
    assert plain.spec == DENSE and plain.spec.family == "dense"
    assert plain.tensors.keys() == expected_tensors(DENSE).keys()
    assert choose_drafter(plain, is_asked=False) is plain


def test_without_it_the_bundle_is_that_of_a_plain_decoder(checkpoint: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    report = export_checkpoint(
        checkpoint, tmp_path / "hilp", self_test=False, progress=Progress(lines.append)
    )
    export_checkpoint(write_dense(tmp_path / "dense"), tmp_path / "plain", self_test=False)
    assert any("--drafter keeps it" in line for line in lines)
    manifest = report.manifest
    assert (manifest.family, manifest.drafter, manifest.spec["drafter"]) == ("dense", None, None)
    for graph in ("decoder.cpu.float32.onnx", "decoder.engine.bfloat16.onnx"):
        models = [
            onnx.load(tmp_path / b / graph, load_external_data=False) for b in ("hilp", "plain")
        ]
        nodes, weights = zip(
            *((list(m.graph.node), [t.name for t in m.graph.initializer]) for m in models),
            strict=True,
        )
        assert nodes[0] == nodes[1] and weights[0] == weights[1]
        sizes = [(tmp_path / b / graph).stat().st_size for b in ("hilp", "plain")]
        # The offsets of the weights have other digits.
        assert abs(sizes[0] - sizes[1]) < 0.01 * sizes[1]


def test_with_it_the_bundle_drafts(checkpoint: Path, tmp_path: Path) -> None:
    report = export_checkpoint(checkpoint, tmp_path / "b", drafter=True, max_draft=5)
    manifest = load_manifest(tmp_path / "b")
    assert report.manifest == manifest and manifest.family == "hilp"
    assert manifest.drafter == DraftLayout(graph="drafter")
    assert manifest.limits.max_draft == 5
    assert manifest.document_token_id is None
    assert manifest.spec["drafter"]["kind"] == "glu_cross"
    assert [graph.role for graph in manifest.graphs] == ["decoder", "drafter"]
    assert {layer.graph for layer in manifest.cache.layers} == {"decoder"}
    assert manifest.self_test is not None


def test_a_token_that_begins_documents_is_in_the_manifest(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = replace(open_checkpoint(checkpoint), document_token_id=2)
    monkeypatch.setattr("quatrain.exporter.chosen_checkpoint.open_checkpoint", lambda _: opened)
    for is_asked in (False, True):
        report = export_checkpoint(
            checkpoint, tmp_path / str(is_asked), drafter=is_asked, self_test=False
        )
        assert report.manifest.document_token_id == 2


def test_a_checkpoint_without_dynamics(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense")
    with pytest.raises(ExportError, match=r"--drafter.*\n.*a dense decoder: no lower_dynamics"):
        export_checkpoint(dense, tmp_path / "b", drafter=True)
    assert not (tmp_path / "b").exists()


def test_a_checkpoint_with_upper_dynamics_only(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    tensors |= {"upper_dynamics.up.weight": tensors["lm_head.weight"]}
    upper = write_checkpoint(tmp_path / "upper", tensors, hilp=HILP)
    with pytest.raises(ExportError, match=r"--drafter.*\n.*upper_dynamics\.up"):
        plan_export(upper, drafter=True)
    assert plan_export(upper).drafter is None


@pytest.mark.parametrize("max_draft", [0, -1])
def test_nothing_to_draft_is_refused(checkpoint: Path, max_draft: int) -> None:
    with pytest.raises(ExportError, match=f"--max-draft {max_draft}"):
        plan_export(checkpoint, drafter=True, max_draft=max_draft)


def test_no_more_guesses_than_a_sequence_has_room_for(checkpoint: Path) -> None:
    assert plan_export(checkpoint, drafter=True, max_draft=500).max_draft == 63
    assert plan_export(checkpoint, drafter=True, max_seq_len=1).max_draft == 1


def test_the_plan_bills_the_drafter_where_it_is_exported(checkpoint: Path) -> None:
    plain, drafting = (plan_export(checkpoint, drafter=is_asked) for is_asked in (False, True))
    assert (plain.graphs, drafting.graphs) == (["decoder"], ["decoder", "drafter"])
    assert plain.drafter is None and isinstance(drafting.drafter, dict)
    assert drafting.weight_bytes - plain.weight_bytes == DYNAMICS_BYTES
    assert drafting.parameters - plain.parameters == DYNAMICS_BYTES // 2
    # Its engine has a head of its own, and the table where the host does not have it.
    graph, host = (
        d.engine_bytes - p.engine_bytes
        for p, d in zip(plain.weights, drafting.weights, strict=True)
    )
    assert graph == DYNAMICS_BYTES + 2 * TABLE_BYTES
    assert host == DYNAMICS_BYTES + TABLE_BYTES


def test_the_command_line(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(checkpoint), "-o", str(tmp_path / "b"), "--dry-run"]
    assert main(words) == 0
    assert "dynamics" not in capsys.readouterr().out
    assert main([*words, "--drafter", "--max-draft", "3"]) == 0
    shown = capsys.readouterr().out
    assert "glu_cross dynamics of width 20, added to the state; at most 3 tokens at once" in shown
    assert main([*words, "--drafter", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["drafter"]["inner_size"] == 20 and plan["max_draft"] == 8


def test_inspect_shows_the_drafter(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_checkpoint(checkpoint, tmp_path / "b", drafter=True, max_draft=3, self_test=False)
    for path, use in (
        (checkpoint, "exported with --drafter"),
        (tmp_path / "b", "at most 3 tokens"),
    ):
        assert main(["inspect", str(path)]) == 0
        assert f"width 20, added to the state; {use}" in capsys.readouterr().out
