"""Records in a bundle what its model says first, so that a deployed one can be held to it."""

from pathlib import Path

import msgspec

from quatrain.exporter.bundle import write_file
from quatrain.runtime.llm import LLM
from quatrain.runtime.manifest import MANIFEST_NAME, SelfTest, dump_manifest, load_manifest
from quatrain.runtime.sampling import SamplingParams

__all__ = ["make_self_test"]

_PROMPT_TOKENS = 8
_NEW_TOKENS = 8


def make_self_test(bundle: Path) -> None:
    """Run a short prompt greedily on the float32 graphs and add the outcome to the manifest."""
    manifest = load_manifest(bundle)
    limit = manifest.limits.max_seq_len
    num_prompt = max(1, min(_PROMPT_TOKENS, limit - _NEW_TOKENS))
    # Any ids will do; spread over the vocabulary they touch different rows of the embedding.
    prompt = [(7 + 101 * i) % manifest.vocab_size for i in range(num_prompt)]
    params = SamplingParams(
        temperature=0.0, max_tokens=min(_NEW_TOKENS, limit - num_prompt), ignore_eos=True
    )
    with LLM(bundle, backend="onnxruntime", verify=False) as llm:
        result = llm.generate([prompt], params)[0]
    exits = None if result.exits is None else list(result.exits)
    test = SelfTest(prompt_ids=prompt, expected_ids=list(result.token_ids), expected_exits=exits)
    manifest = msgspec.structs.replace(manifest, self_test=test)
    write_file(bundle / MANIFEST_NAME, dump_manifest(manifest))
