"""Dense checkpoint in, checkpoint with banks of feed-forward channels out."""

from dataclasses import asdict, dataclass
from pathlib import Path

from quatrain.exporter.bundle import WeightsMode
from quatrain.exporter.calibration_text import CalibrationText, read_windows
from quatrain.exporter.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.checkpoint.json_file import read_json_object
from quatrain.exporter.derivation import (
    TensorSource,
    check_output,
    derive_config,
    write_checkpoint,
)
from quatrain.exporter.progress import Progress, Stage
from quatrain.exporter.resumable_folder import choose_work_folder
from quatrain.exporter.sparsification.predictors import fit_predictors
from quatrain.exporter.sparsification.quality import LayerQuality
from quatrain.exporter.sparsification.settings import Method, SparsifyRequest, settle_banks
from quatrain.exporter.sparsification.work_folder import WorkFolder
from quatrain.exporter.spec import BankTopK, DecoderSpec, GateMode
from quatrain.exporter.work_identity import identify_work

__all__ = ["SparsifyReport", "sparsify_checkpoint"]

_KIND = "a sparse checkpoint"
_MARK = "BankTopK"
_DEFAULT_TOKENS = 32768
_DEFAULT_WINDOW = 512
# With fewer rows than this for every number of an input, its moments are mostly chance.
_ROWS_PER_INPUT = 4


@dataclass(frozen=True, slots=True)
class SparsifyReport:
    """What a sparsification wrote.

    `fitted_tokens` and `held_out_tokens` are what the predictors were fitted to and measured on,
    `layers` the measurements: none with `dense-topk`. `predictor_cost` is what a predictor takes in
    products, as a share of the dense network's. `new_bytes` is the size of the new tensors,
    `weights` how the old files got there.
    """

    checkpoint: Path
    family: str
    banks: BankTopK
    intermediate_size: int
    predictor_cost: float
    fitted_tokens: int
    held_out_tokens: int
    layers: list[LayerQuality]
    new_bytes: int
    weights: WeightsMode
    stages: list[Stage]
    warnings: list[str]


def sparsify_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    method: Method = "predictor",
    bank_size: int = 64,
    top_k: int = 16,
    rank: int | None = None,
    gate_mode: GateMode | None = None,
    text: Path | None = None,
    tokens: int | None = None,
    window: int | None = None,
    weights: WeightsMode | None = None,
    work: Path | None = None,
    progress: Progress | None = None,
) -> SparsifyReport:
    """Give a checkpoint a bank-wise top-k feed-forward (arXiv 2606.10722), whole or not at all.

    The backbone stays as it is. `dense-topk` fits nothing: the channels with the largest
    activations are kept, after the fact. `predictor` fits a low-rank predictor to the gate of each
    layer, in closed form (`low_rank.fit_predictor`): the side branch that imitates the native gate
    signal, from which the paper's training goes on. Without that training the result is no model to
    use: the gate says little of which activations are large (SmolLM2-135M, 16 of 64 channels chosen
    by its own exact gates: perplexity 8169 instead of 24).

    Args:
        bank_size: Neighbouring channels that compete.
        top_k: Those of a bank that run.
        rank: Width between the two matrices of a predictor. Default: one for 32 channels.
        gate_mode: What takes the place of the gate: `sigmoid` of the logits, the backbone's own
            `silu`, or `hard`, 1. Default: `sigmoid`; with `dense-topk` it can only be `silu`.
        text: What predictors are fitted to: UTF-8 text, or token ids in a .npy file.
        tokens: How many of its tokens to use. Default: 32768, or all.
        window: Tokens that the backbone sees together. Default: 512.
        weights: `link` or `copy` the weight files. Default: link where the file system allows.
        work: Folder to keep the calibration in, to go on from after an interruption or to fit
            another rank. Default: `output` with `.partial` behind its name, removed at the end.

    Raises:
        QuatrainError: What was asked cannot be done; nothing is left at `output`.
    """
    progress = progress or Progress()
    check_output(output, checkpoint, _KIND)
    place = choose_work_folder(work, output, checkpoint)
    request = SparsifyRequest(method, bank_size, top_k, rank, gate_mode, text, tokens, window, work)
    with progress.stage("read checkpoint"):
        source = open_checkpoint(checkpoint)
        spec = settle_banks(source, request)
    made = _Predictors(source, spec, request, place, progress)
    report = _write(source, output, spec, made, weights, progress)
    if work is None and made.work is not None:
        made.work.remove()
    return report


class _Predictors:
    """The new tensors, and what is known of them; none of either with `dense-topk`."""

    def __init__(
        self,
        source: Checkpoint,
        spec: DecoderSpec,
        request: SparsifyRequest,
        work: Path,
        progress: Progress,
    ) -> None:
        self.tensors: dict[str, TensorSource] = {}
        self.qualities: list[LayerQuality] = []
        self.text: CalibrationText | None = None
        self.work: WorkFolder | None = None
        banks = spec.feed_forward
        assert banks is not None
        if banks.predictor_rank is None or request.text is None:
            return
        progress.say(f"rank {banks.predictor_rank}: {_predictor_cost(spec):.1%} of the dense cost")
        self.text = read_windows(
            source,
            request.text,
            request.tokens,
            _DEFAULT_WINDOW if request.window is None else request.window,
            asked="fit predictors",
            default_tokens=_DEFAULT_TOKENS,
        )
        self.work = WorkFolder(work, identify_work(source, self.text))
        fitted, self.qualities = fit_predictors(source, banks, self.text, self.work, progress)
        self.tensors.update(fitted)

    @property
    def fitted_tokens(self) -> int:
        """Tokens that were fitted to."""
        return 0 if self.text is None else self.text.fitted.size

    @property
    def held_out_tokens(self) -> int:
        """Tokens that were measured on."""
        return 0 if self.text is None else self.text.held_out.size


def _write(
    source: Checkpoint,
    output: Path,
    spec: DecoderSpec,
    made: _Predictors,
    weights: WeightsMode | None,
    progress: Progress,
) -> SparsifyReport:
    banks = spec.feed_forward
    assert banks is not None
    config = derive_config(read_json_object(source.folder / "config.json"), _MARK)
    config["bank_topk"] = asdict(banks)
    written, mode = write_checkpoint(
        source,
        output,
        config,
        made.tensors,
        weights,
        progress,
        kind=_KIND,
        parts="predictors",
        label="bank-topk",
    )
    warnings = _collect_warnings(spec, made)
    for warning in warnings:
        progress.say(f"warning: {warning}")
    return SparsifyReport(
        checkpoint=Path(output),
        family=written.spec.family,
        banks=banks,
        intermediate_size=spec.backbone.intermediate_size,
        predictor_cost=_predictor_cost(spec),
        fitted_tokens=made.fitted_tokens,
        held_out_tokens=made.held_out_tokens,
        layers=made.qualities,
        new_bytes=sum(tensor.nbytes for tensor in made.tensors.values()),
        weights=mode,
        stages=progress.stages,
        warnings=warnings,
    )


def _collect_warnings(spec: DecoderSpec, made: _Predictors) -> list[str]:
    hidden = spec.backbone.hidden_size
    if 0 < made.fitted_tokens < _ROWS_PER_INPUT * hidden:
        return [
            f"only {made.fitted_tokens} tokens to fit to, for inputs of {hidden} numbers: give more"
            f" text (--text, --tokens), at least {_ROWS_PER_INPUT * hidden}"
        ]
    return []


def _predictor_cost(spec: DecoderSpec) -> float:
    """Products of a predictor, r * (d + d_i), over those of the dense network, 3 * d * d_i."""
    banks, backbone = spec.feed_forward, spec.backbone
    rank = 0 if banks is None else banks.predictor_rank or 0
    hidden, inner = backbone.hidden_size, backbone.intermediate_size
    return rank * (hidden + inner) / (3 * hidden * inner)
