"""The bundle's self-test: greedy tokens the exporter recorded must come out again."""

from collections.abc import Callable, Sequence

from quatrain.runtime.errors import BundleError
from quatrain.runtime.manifest import Manifest, SelfTest
from quatrain.runtime.results import GenerationResult
from quatrain.runtime.sampling import SamplingParams

__all__ = ["check_self_test"]

Generate = Callable[[Sequence[Sequence[int]], SamplingParams], list[GenerationResult]]


def check_self_test(manifest: Manifest, generate: Generate) -> None:
    """Generate what the manifest expects; `BundleError` names the first step that differs."""
    expected = manifest.self_test
    if expected is None:
        raise BundleError(
            "the bundle's self-test",
            "the manifest records none",
            "export the checkpoint again with its self-test, or open the bundle without it",
        )
    params = SamplingParams(temperature=0, max_tokens=len(expected.expected_ids), ignore_eos=True)
    [result] = generate([expected.prompt_ids], params)
    difference = _find_difference(expected, result)
    if difference:
        raise BundleError(
            f"the bundle's self-test ({len(expected.expected_ids)} greedy tokens)",
            difference,
            "export the checkpoint again (quatrain build for the engines); if it stays, this "
            "backend computes something else than the exporting machine did in float32 (an engine "
            "in half precision may also turn a near tie the other way)",
        )


def _find_difference(expected: SelfTest, result: GenerationResult) -> str | None:
    if result.output_tokens < len(expected.expected_ids):
        return f"only {result.output_tokens} tokens came out"
    wanted_exits, exits = expected.expected_exits, result.exits
    for step, (want, have) in enumerate(zip(expected.expected_ids, result.token_ids, strict=True)):
        if want != have:
            return f"step {step}: token {have}, expected {want}"
        if wanted_exits and exits and wanted_exits[step] != exits[step]:
            return f"step {step}: exit {exits[step]}, expected {wanted_exits[step]}"
    return None
