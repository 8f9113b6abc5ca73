"""What the gate of an export sees: faults of every axis, in as few tokens as that takes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.exporter.comparison.axis_mutations import (
    exchange_keys_and_values,
    forget_the_state,
    keep_another_stream,
    leave_a_layer_early,
    mirror_another_layer,
    mix_heads,
    swap_router_choices,
    tell_another_window,
    tell_later_positions,
    transpose_head,
    use_norm_of_layer_before,
    widen_windows,
)
from tests.exporter.comparison.bundles import export, find_checkpoint
from tests.exporter.comparison.mutations import Edit, choose_channels, mutate

from quatrain.exporter import export_checkpoint
from quatrain.exporter.comparison import Comparison, compare_bundle
from quatrain.exporter.verification import choose_length
from quatrain.runtime.manifest import load_manifest

WINDOWED, NARROW = "windowed", "narrow"
WINDOWS = {WINDOWED: 40, NARROW: 3}


@pytest.fixture(scope="module")
def pairs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Path]]:
    """Bundle and checkpoint by name, each exported once, with drafters."""
    made: dict[str, list[Path]] = {}

    def get(name: str) -> list[Path]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            if name in WINDOWS:
                made[name] = write_windowed(root, folder, WINDOWS[name])
            else:
                bundle = export(root, name, folder / "bundle", dtype="float16")
                made[name] = [bundle, find_checkpoint(root, name)]
        return made[name]

    return get


def write_windowed(root: Path, folder: Path, window: int) -> list[Path]:
    """A golden model whose first layer, a stream-factorized one, has a window."""
    checkpoint = folder / "checkpoint"
    shutil.copytree(find_checkpoint(root, "hidden_decoding_sfa"), checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config["sliding_window_size_layerwise"] = [window, *[-1] * (config["num_hidden_layers"] - 1)]
    (checkpoint / "config.json").write_text(json.dumps(config))
    export_checkpoint(checkpoint, folder / "bundle", self_test=False, verify=False, dtype="float16")
    return [folder / "bundle", checkpoint]


def compare(
    pair: list[Path], broken: Path, edit: Edit, runner: str = "fp32"
) -> tuple[Comparison, tuple[str, int | None]]:
    """What the gate says of a bundle after an edit, and the first diverging tensor."""
    mutate(pair[0], broken, edit, "cpu" if runner == "fp32" else "engine")
    length, steps = choose_length(load_manifest(pair[0]))
    comparison = compare_bundle(
        broken, pair[1], runners=[runner], max_tokens=length, decode_steps=steps
    )
    assert not comparison.passed
    (found,) = comparison.divergences
    return comparison, (found.tensor, found.layer)


@pytest.mark.parametrize("runner", ["fp32", "deployment"])
@pytest.mark.parametrize(
    ("name", "edit", "tensor", "layer"),
    [
        ("nvium", leave_a_layer_early(1), "exits.1.router_logprobs", None),
        ("nvium", swap_router_choices(2), "exits.2.router_logprobs", None),
        ("hilp", mix_heads(2), "layers.2.attention", 2),
        ("hilp", transpose_head(1), "key_cache.1", 1),
        ("hilp", exchange_keys_and_values(1, 2, 4), "key_cache.1", 1),
        ("hidden_decoding", use_norm_of_layer_before(2), "key_cache.2", 2),
        ("hilp", forget_the_state(), "draft.1.state", None),
        ("hidden_decoding_mirror", mirror_another_layer(5, 1), "key_cache.5", 5),
        ("hidden_decoding_mirror", keep_another_stream(), "layers.1.attention", 1),
    ],
    ids=lambda value: getattr(value, "__qualname__", str(value)).partition(".")[0],
)
def test_the_gate_names_what_is_wrong(
    pairs: Callable[[str], list[Path]],
    tmp_path: Path,
    name: str,
    edit: Edit,
    tensor: str,
    layer: int | None,
    runner: str,
) -> None:
    assert compare(pairs(name), tmp_path / "broken", edit, runner)[1] == (tensor, layer)


@pytest.mark.parametrize(
    ("name", "edit", "layer", "runner"),
    [
        (WINDOWED, widen_windows(1), 0, "fp32"),
        (WINDOWED, widen_windows(-1), 0, "fp32"),
        # What only a kernel reads, in the graphs of engines, without a GPU.
        (NARROW, tell_another_window(1), 0, "deployment"),
        (NARROW, tell_another_window(-1), 0, "deployment"),
        (NARROW, tell_later_positions(1), 1, "deployment"),
        ("hidden_decoding_mirror", tell_later_positions(4), 4, "deployment"),
    ],
)
def test_what_a_row_sees(
    pairs: Callable[[str], list[Path]],
    tmp_path: Path,
    name: str,
    edit: Edit,
    layer: int,
    runner: str,
) -> None:
    found = compare(pairs(name), tmp_path / "broken", edit, runner)[1]
    assert found == (f"layers.{layer}.attention", layer)


@pytest.mark.parametrize("runner", ["fp32", "deployment"])
def test_an_active_channel_more(
    pairs: Callable[[str], list[Path]], tmp_path: Path, runner: str
) -> None:
    """All of the reference's channels are active; but not only these."""
    comparison, first = compare(
        pairs("bank_topk"), tmp_path / "broken", choose_channels(17), runner
    )
    assert first == ("layers.0.active_channels", 0)
    assert "active channels" in {check.name for check in comparison.failures}


def test_the_gate_crosses_windows_where_that_is_quick(
    pairs: Callable[[str], list[Path]],
) -> None:
    manifest = load_manifest(pairs(WINDOWED)[0])
    length, steps = choose_length(manifest)
    assert length - steps > WINDOWS[WINDOWED]
    large = [msgspec.structs.replace(record, bytes=1 << 40) for record in manifest.files]
    assert choose_length(msgspec.structs.replace(manifest, files=large))[0] == 32
    assert choose_length(load_manifest(pairs("hilp")[0])) == (32, 8)
