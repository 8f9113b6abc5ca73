"""Comparisons as `compare_bundle` makes them, with everything in them that there can be."""

import math

from quatrain.exporter.comparison import (
    CaseInfo,
    Check,
    Comparison,
    Divergence,
    Flip,
    Histogram,
    LayerError,
    PlotData,
    RunnerInfo,
)

LAYERS = 6
RUNNERS = {"fp32": 1e-7, "deployment": 2e-3}


def make_comparison(*, broken: bool = False) -> Comparison:
    """A model with exits and banks on two runners; `broken`, the second is wrong from layer 3 on,
    and hostile names are everywhere."""
    tag = "<b>&" if broken else ""
    checks = []
    for runner, error in RUNNERS.items():
        is_bad = broken and runner == "deployment"
        checks += [
            Check(
                "logits",
                not is_bad,
                0.4 if is_bad else error,
                1e-4 if error < 1e-5 else 2e-2,
                runner,
                f"largest in case short{tag}, position 7",
            ),
            Check("not finite", not is_bad, math.nan if is_bad else 0, 0, runner),
            Check("top-1 agreement", True, 1.0, 0.98, runner, at_least=True),
            Check("shapes", True, "as recorded", "as recorded", runner),
        ]
    divergence = Divergence("deployment", "layers.3.attention", 3, 7, 0.4, 2e-2, f"short{tag}")
    return Comparison(
        bundle=f"bundle{tag}",
        checkpoint="checkpoint",
        reference="the checkpoint's weights as they are",
        family="nvium",
        cases=[CaseInfo("short", [12, 5], [8, 3], 4, "crosses a chunk")],
        runners=[
            RunnerInfo("fp32", "compared", dtype="float32", seconds=1.25),
            RunnerInfo("deployment", "compared", dtype="bfloat16", seconds=2.5),
            RunnerInfo("tensorrt", "skipped", "no GPU here"),
        ],
        checks=checks,
        divergences=[divergence] if broken else [],
        layer_errors=_make_layer_errors(broken),
        plots=_make_plots(broken),
        seconds=4.0,
    )


def _make_layer_errors(broken: bool) -> list[LayerError]:
    tensors = [("embedding", None)]
    for layer in range(LAYERS):
        tensors += [(f"layers.{layer}.attention", layer), (f"layers.{layer}.output", layer)]
    tensors += [("logits", None)]
    errors = []
    for runner, error in RUNNERS.items():
        for step, (tensor, layer) in enumerate(tensors):
            jump = 200 if broken and runner == "deployment" and step >= 7 else 1
            relative = 0.0 if step == 0 else error * (1 + step / 3) * jump
            errors.append(LayerError(runner, tensor, layer, relative * 8, 8.0, relative))
    return errors


def _make_plots(broken: bool) -> PlotData:
    edges = [(i - 10) / 10 for i in range(21)]
    hill = [round(4000 * math.exp(-abs(i - 9.5) * 1.1)) for i in range(20)]
    return PlotData(
        kl_per_position={
            name: [error**2 * (2 + math.sin(i)) for i in range(60)]
            for name, error in RUNNERS.items()
        },
        logit_differences={
            name: Histogram([edge * error for edge in edges], hill)
            for name, error in RUNNERS.items()
        },
        exit_shares={
            "reference": [0.1, 0.2, 0.3, 0.4],
            "fp32": [0.1, 0.2, 0.3, 0.4],
            "deployment": [0.11, 0.2, 0.29, 0.4],
        },
        selection_overlap={
            "fp32": dict.fromkeys(range(LAYERS), 1.0),
            "deployment": {layer: 1 - layer / 400 for layer in range(LAYERS)},
        },
        flips=[Flip("deployment", "short", 0, 9, 17, 21, 0.003)] if broken else [],
    )
