"""How a model is asked to draft, checked against its bundle."""

from typing import Literal

from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import Manifest

__all__ = ["DraftSetting", "settle_draft"]

# As measured, or so many tokens in every round; None or 0: none.
DraftSetting = Literal["auto"] | int | None


def settle_draft(draft: DraftSetting, manifest: Manifest) -> Literal["auto"] | int | None:
    """`auto` or a number from 1 to the bundle's limit; None where nothing is drafted.

    Raises `RequestError` for anything else, and for a number where the bundle has no drafter.
    """
    if draft is None or (draft == 0 and type(draft) is int):
        return None
    limit = manifest.limits.max_draft
    if draft == "auto":
        return None if manifest.drafter is None else "auto"
    asked = f"draft={draft!r}"
    if type(draft) is not int or draft < 0:
        raise RequestError(
            asked,
            "that is no number of tokens to draft",
            f"give auto, 0 for none, or an integer from 1 to {limit}",
        )
    if manifest.drafter is None:
        raise RequestError(
            asked,
            f"this bundle ({manifest.family}) has no drafter",
            "leave draft out, or export a HiLP or NextLat checkpoint with --drafter",
        )
    if draft > limit:
        has_more = limit < manifest.limits.max_seq_len - 1  # a round has one row more
        more = ", or export with a larger --max-draft" if has_more else ""
        raise RequestError(
            asked,
            f"this bundle was exported to draft at most {limit} tokens: its engines have no room"
            " for more rows",
            f"give an integer from 1 to {limit}{more}",
        )
    return draft
