"""Train the sample models: python -m samples.train --out samples/checkpoints."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from samples.train.bank_topk import BankTopKLlama, sparsify_post_hoc
from samples.train.data import load_split
from samples.train.drafts import MAX_DRAFT, DraftReport, report_drafts
from samples.train.evaluate import ExitReport, TextScore, report_exits, score_text
from samples.train.fabric import save_fabric
from samples.train.latent import LatentLlama
from samples.train.llama import DenseLlama, LanguageModel, LlamaSettings
from samples.train.load import check_tokenizer, find_checkpoint, load_weights
from samples.train.loop import LoopSettings, train_model
from samples.train.nvium import NviumLlama
from samples.train.recipes import BANKS, NEXTLAT, RECIPES, REFINE, Recipe, find_recipe
from samples.train.refine import refine_dynamics
from samples.train.save import describe_llama, round_weights, save_checkpoint
from samples.train.tokenizer import encode_documents, encode_text, train_tokenizer

STEPS = 600
COMMITTED = Path(__file__).parents[1] / "checkpoints"
PUBLISHED_DRAFTS = {"hilp, joint": (3.41, 2.59), "nextlat, joint": (3.26, 2.57)}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m samples.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="steps per model; half to go on from one"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads torch may use")
    names = [recipe.name for recipe in RECIPES]
    parser.add_argument("--only", choices=names, action="append", help="train just this model")
    return parser.parse_args(arguments)


def print_progress(step: int, loss: float, seconds: float) -> None:
    """One line."""
    print(f"  step {step:5d}  loss {loss:.3f}  {seconds:6.0f} s", flush=True)


def train_recipe(
    recipe: Recipe,
    llama: LlamaSettings,
    loop: LoopSettings,
    stream: Tensor,
    models: Mapping[str, LanguageModel],
) -> LanguageModel:
    """Build from the seed or a model there is, train, and leave the weights as stored."""
    torch.manual_seed(loop.seed)
    model = recipe.build(llama)
    if recipe.start is not None:
        weights = models[recipe.start.recipe].state_dict()
        model.load_state_dict({**model.state_dict(), **recipe.start.adapt(weights)})
    count = sum(p.numel() for p in model.parameters())
    print(f"{recipe.name}: {count} parameters, {loop.steps} steps", flush=True)
    train_model(model, stream, loop, print_progress)
    round_weights(model)
    return model


def refine_drafts(model: LatentLlama, stream: Tensor, share: float, seed: int) -> None:
    """Train what drafts once more, beside the weights as they will be stored."""
    settings = REFINE.take_share(share)
    texts = settings.texts * len(settings.temperatures)
    print(f"  dynamics alone: {texts} texts of its own, {settings.steps} steps", flush=True)
    refine_dynamics(model, stream, settings, seed, print_progress)
    round_weights(model)


def load_recipe(
    recipe: Recipe, llama: LlamaSettings, tokenizer: Tokenizer, out: Path
) -> LanguageModel:
    """The model as an earlier run left it in `out`, or else as committed."""
    folder = find_checkpoint(name_folder(recipe), (out, COMMITTED))
    print(f"{recipe.name}: read from {folder}", flush=True)
    check_tokenizer(folder, tokenizer)
    model = recipe.build(llama)
    load_weights(model, folder)
    return model


def name_folder(recipe: Recipe) -> str:
    """Checkpoints are named after the text and the recipe."""
    return f"topics-{recipe.name}"


def write_recipe(
    folder: Path,
    recipe: Recipe,
    model: LanguageModel,
    llama: LlamaSettings,
    loop: LoopSettings,
    tokenizer: Tokenizer,
) -> None:
    """Save the common files and the recipe's own."""
    if recipe.architecture is None:
        save_fabric(folder, model, llama, NEXTLAT, tokenizer, loop.steps)
        return
    config = {**describe_llama(llama, recipe.architecture), **recipe.extra_config(llama)}
    save_checkpoint(folder, model, llama, tokenizer, config)
    for name, text in recipe.extra_files(llama, loop).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def add_post_hoc(models: Mapping[str, LanguageModel]) -> dict[str, LanguageModel]:
    """Behind each dense model the same cut down to its largest activations: "Dense-4x" or so."""
    ratio = BANKS.bank_size // BANKS.top_k
    rows: dict[str, LanguageModel] = {}
    for name, model in models.items():
        rows[name] = model
        if type(model) is DenseLlama:
            rows[f"{name}-{ratio}x"] = sparsify_post_hoc(model, BANKS)
    return rows


def format_scores(scores: dict[str, TextScore]) -> str:
    """A table of held-out numbers."""
    rows = [f"{'model':18} perplexity  bits/byte"]
    for name, score in scores.items():
        rows.append(f"{name:18} {score.perplexity:10.3f}  {score.bits_per_byte:9.4f}")
    return "\n".join(rows)


def format_drafts(reports: dict[str, DraftReport]) -> str:
    """Tokens a step beside the paper's (arXiv 2608.05806), of models a thousand times as large."""
    rows = [
        f"{'tokens a step':18} after text  along greedy  first right  paper: code  ClimbMix"
        f"  (K = {MAX_DRAFT})"
    ]
    for name, report in reports.items():
        row = f"{name:18} {report.after_text:10.3f}  {report.along_greedy:12.3f}"
        row += f"  {report.first_right:11.1%}"
        if name in PUBLISHED_DRAFTS:
            code, climbmix = PUBLISHED_DRAFTS[name]
            row += f"  {code:11.2f}  {climbmix:8.2f}"
        rows.append(row)
    return "\n".join([*rows, f"{'none':18} {1:10.3f}  {1:12.3f}"])


def format_exits(report: ExitReport) -> str:
    """Where tokens leave, by the mixture's mean and by argmax routing."""

    def format_row(name: str, values: tuple[float, ...]) -> str:
        return f"{name:18}" + "".join(f"{value:8.3f}" for value in values)

    return "\n".join(
        (
            format_row("share, mixture", report.mixture_shares),
            format_row("share, argmax", report.argmax_shares),
            format_row("head perplexity", report.head_perplexities),
            f"mean depth: mixture {report.mixture_depth:.3f}, argmax {report.argmax_depth:.3f}",
            f"perplexity with argmax routing: {report.argmax_perplexity:.3f}",
        )
    )


def main(arguments: list[str] | None = None) -> None:
    """Train, score, save, print."""
    options = parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    llama, loop = LlamaSettings(), LoopSettings(steps=options.steps, seed=options.seed)
    split = load_split()
    tokenizer = train_tokenizer(split.documents, llama.vocab_size)
    stream = torch.tensor(encode_documents(tokenizer, split.documents))
    heldout = torch.tensor(encode_text(tokenizer, split.heldout))
    num_bytes = len(split.heldout.encode())
    print(f"{len(stream)} training tokens; {len(heldout)} held out in {num_bytes} bytes")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "heldout.txt").write_text(split.heldout, encoding="utf-8")
    models: dict[str, LanguageModel] = {}
    drafts: dict[str, DraftReport] = {}
    for recipe in RECIPES:
        if options.only and recipe.name not in options.only:
            continue
        if recipe.start is not None and recipe.start.recipe not in models:
            start = find_recipe(recipe.start.recipe)
            models[start.name] = load_recipe(start, llama, tokenizer, options.out)
        own_loop = recipe.adapt_loop(loop)
        model = models[recipe.name] = train_recipe(recipe, llama, own_loop, stream, models)
        if isinstance(model, LatentLlama):
            drafts[f"{recipe.name}, joint"] = report_drafts(model, heldout)
            refine_drafts(model, stream, options.steps / STEPS, own_loop.seed)
            drafts[recipe.name] = report_drafts(model, heldout)
        if not recipe.is_control:
            folder = options.out / name_folder(recipe)
            write_recipe(folder, recipe, model, llama, own_loop, tokenizer)
        if isinstance(model, NviumLlama):
            print(format_exits(report_exits(model, heldout)))
    if any(isinstance(model, BankTopKLlama) for model in models.values()):
        models = add_post_hoc(models)
    scores = {name: score_text(model, heldout, num_bytes) for name, model in models.items()}
    print(format_scores(scores))
    if drafts:
        print(format_drafts(drafts))


if __name__ == "__main__":
    main()
