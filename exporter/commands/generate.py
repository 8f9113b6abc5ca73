"""`quatrain generate`: prompts in, text out as it is made."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.drafting_report import describe_drafting
from quatrain.exporter.commands.llm_flags import add_llm_flags, open_llm, read_word_or_number
from quatrain.exporter.commands.path_flag import read_path

if TYPE_CHECKING:
    from quatrain.runtime import LLM, SamplingParams
    from quatrain.runtime.results import GenerationResult, GenerationStats

__all__ = ["configure_parser", "run"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags: `LLM`'s, `LLM.generate`'s and `SamplingParams`'s."""
    add_llm_flags(parser)
    prompts = parser.add_argument_group("prompts, in any number and mixture")
    for flag, read, metavar, text in (
        ("--prompt", str, "TEXT", "a prompt as text"),
        ("--prompt-ids", _read_ids, "ID,ID,...", "a prompt as token ids"),
        ("--prompt-file", read_path, "FILE", "a file with one prompt (a last newline is dropped)"),
    ):
        prompts.add_argument(
            flag, dest="prompts", action="append", type=read, metavar=metavar, help=text
        )
    _add_sampling_flags(parser.add_argument_group("sampling"))
    parser.add_argument("--stats", action="store_true", help="tell speed and counts on stderr")


def _add_sampling_flags(group: argparse._ArgumentGroup) -> None:
    for flag, read, default, text in (
        ("--temperature", float, 1.0, "0 is greedy"),
        ("--top-k", int, 0, "keep the K most likely tokens; 0 keeps all"),
        ("--top-p", float, 1.0, "keep the most likely tokens holding this mass; 1 keeps all"),
        ("--min-p", float, 0.0, "keep tokens this likely relative to the likeliest; 0 keeps all"),
        ("--repetition-penalty", float, 1.0, "above 1 makes repeats less likely"),
        ("--max-tokens", int, 128, "most tokens to generate, as far as the bundle has room"),
    ):
        group.add_argument(
            flag, type=read, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    group.add_argument("--seed", type=int, metavar="N", help="make the draws repeatable")
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; repeatable",
    )
    group.add_argument(
        "--stop-token-id",
        dest="stop_token_ids",
        action="append",
        type=int,
        default=[],
        metavar="ID",
        help="end at this token, as at EOS; repeatable",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after EOS")
    group.add_argument(
        "--routing",
        type=lambda text: read_word_or_number(text, "sample", "argmax"),
        metavar="sample|argmax|EXIT",
        help="how a model with exits leaves early: draw from the exact mixture (the default when"
        " temperature > 0), take the likelier way (the default at 0), or always at one exit",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Generate, streaming where there is one prompt and a person to read it."""
    from quatrain.runtime import SamplingParams

    params = SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        seed=args.seed,
        stop=args.stop,
        stop_token_ids=args.stop_token_ids,
        max_tokens=args.max_tokens,
        ignore_eos=args.ignore_eos,
        routing=args.routing,
    )
    prompts = _read_prompts(args.prompts)
    with open_llm(args) as llm:
        console.say(_describe_params(params, llm.manifest.exits is not None))
        if len(prompts) == 1 and not console.is_json:
            _stream(llm, prompts[0], params, console)
        else:
            _generate(llm, prompts, params, console)
        if args.stats:
            is_off_by_seed = args.draft == "auto" and params.is_repeatable
            console.say(_describe_stats(llm.stats, is_off_by_seed=is_off_by_seed))
    return 0


def _stream(
    llm: "LLM", prompt: str | list[int], params: "SamplingParams", console: Console
) -> None:
    for delta in llm.stream(prompt, params):
        # Without a tokenizer the ids are all there is to show.
        text = delta.text if llm.tokenizer else "".join(f"{token} " for token in delta.token_ids)
        console.show(text, end="")
    console.show("")
    if delta.finish_reason == "length":
        _tell_limit(llm, params, delta.output_tokens or 0, "it", console)


def _generate(
    llm: "LLM", prompts: list[str | list[int]], params: "SamplingParams", console: Console
) -> None:
    results = llm.generate(prompts, params)
    console.set_document({"results": [_drop_none(r) for r in results], "stats": llm.stats})
    for index, result in enumerate(results):
        text = result.text if llm.tokenizer else " ".join(map(str, result.token_ids))
        console.show(f"--- prompt {index + 1} ({result.finish_reason})\n{text}")
        if result.finish_reason == "length":
            _tell_limit(llm, params, result.output_tokens, f"prompt {index + 1}", console)


def _tell_limit(
    llm: "LLM", params: "SamplingParams", num_tokens: int, what: str, console: Console
) -> None:
    """Say so where not `max_tokens` was the end, but the bundle's limit."""
    if num_tokens < params.max_tokens:
        console.say(
            f"{what} ended after {num_tokens} tokens, short of max_tokens {params.max_tokens}:"
            f" this bundle holds {llm.manifest.limits.max_seq_len}, prompt and output together"
        )


def _drop_none(result: "GenerationResult") -> dict[str, object]:
    """The result without what a model without exits does not have."""
    return {name: value for name, value in asdict(result).items() if value is not None}


def _read_prompts(given: list[str | list[int] | Path] | None) -> list[str | list[int]]:
    from quatrain.runtime.errors import RequestError

    if not given:
        raise RequestError(
            "generate without a prompt",
            "none was given",
            "add --prompt, --prompt-ids or --prompt-file",
        )
    return [_read_prompt_file(item) if isinstance(item, Path) else item for item in given]


def _read_prompt_file(path: Path) -> str:
    from quatrain.exporter.text_file import read_text

    return read_text(path).removesuffix("\n")


def _read_ids(text: str) -> list[int]:
    try:
        return [int(token) for token in text.split(",")] if text.strip() else []
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not token ids such as 1,2,3") from None


def _describe_params(params: "SamplingParams", has_exits: bool) -> str:
    way = "greedy" if params.temperature == 0 else "sampling; 0 is greedy"
    words = [f"temperature {params.temperature:g} ({way})", f"max_tokens {params.max_tokens}"]
    if params.seed is not None:
        words.append(f"seed {params.seed}")
    if has_exits:
        words.append(f"routing {params.chosen_routing}")
    return ", ".join(words)


def _describe_stats(stats: "GenerationStats", *, is_off_by_seed: bool) -> str:
    first = stats.time_to_first_token
    lines = [
        f"{stats.output_tokens} tokens from {stats.prompt_tokens} in {stats.seconds:.3f} s:"
        f" {stats.tokens_per_second:.1f} tokens/s, {stats.decode_tokens_per_second:.1f} after the"
        " first",
        f"time to first token {'-' if first is None else f'{1000 * first:.1f} ms'},"
        f" Python {100 * stats.python_share:.1f} % of the time",
    ]
    if stats.exit_counts is not None and stats.mean_depth is not None:
        counts = ", ".join(f"{count} at exit {k}" for k, count in enumerate(stats.exit_counts))
        lines.append(f"tokens {counts}; {stats.mean_depth:.2f} layers deep on average")
    if stats.draft is not None:
        lines += describe_drafting(stats.draft, is_off_by_seed=is_off_by_seed)
    return "\n".join(lines)
