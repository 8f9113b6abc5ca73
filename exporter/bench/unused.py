"""What is asked of all bundles and some of them cannot use."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from quatrain.exporter.bench.setting import BenchSetting
from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import Manifest

__all__ = ["check_unused", "describe_unused"]


def check_unused(
    manifests: Mapping[Path, Manifest], setting: BenchSetting, text: Path | None
) -> None:
    """Raise `RequestError` for a number to draft, or a text, that none of the bundles can use."""
    names = ", ".join(map(os.fspath, manifests))
    if setting.draft not in ("auto", 0) and not any(m.drafter for m in manifests.values()):
        raise RequestError(
            f"{setting.draft} tokens drafted for each verification (--draft)",
            f"there is no drafter in {names}",
            "leave --draft out, or export a HiLP or NextLat checkpoint with --drafter",
        )
    if text is not None and not any(m.tokenizer for m in manifests.values()):
        raise RequestError(
            f"prompts cut from {text} (--text)",
            f"there is no tokenizer in {names}",
            "leave --text out (prompts are all ids in turn then), or add tokenizer.json to the"
            " checkpoint and export it again",
        )


def describe_unused(manifests: Mapping[Path, Manifest], setting: BenchSetting) -> Iterator[str]:
    """A line for each bundle that runs without what others may have."""
    for bundle, manifest in manifests.items():
        if setting.draft not in ("auto", 0) and manifest.drafter is None:
            yield f"{bundle} has no drafter, and runs without drafts (--draft {setting.draft})"
        if manifest.tokenizer is None:
            yield f"{bundle} has no tokenizer: its prompts are all ids in turn, and no text"
