"""The text of one sequence up to its stop string, given out as soon as it is certain."""

from collections.abc import Sequence

from quatrain.runtime.tokenizer import Detokenizer

__all__ = ["TextStream"]


class TextStream:
    """Tokens in, text out. The pieces joined are the text before the first stop string.

    Text that may be the beginning of a stop string waits until that is decided. Of several stop
    strings the one completed first counts, so the result does not depend on token boundaries.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._waiting = ""
        self.is_stopped = False

    def push(self, token_id: int) -> str:
        """The text that is certain with this token."""
        piece = self._detokenizer.push(token_id)
        return self._hold_back(piece) if self._stop else piece

    def finish(self) -> str:
        """The rest, when no token follows; it may still complete a stop string."""
        if self.is_stopped:
            return ""
        piece = self._detokenizer.finish()
        if not self._stop:
            return piece
        piece = self._hold_back(piece)
        return piece if self.is_stopped else piece + self._waiting

    def _hold_back(self, piece: str) -> str:
        text = self._waiting + piece
        found = [
            (text.find(stop) + len(stop), text.find(stop)) for stop in self._stop if stop in text
        ]
        if found:
            self.is_stopped = True
            return text[: min(found)[1]]
        num_held = max(_count_overlap(text, stop) for stop in self._stop)
        certain = len(text) - num_held
        self._waiting = text[certain:]
        return text[:certain]


def _count_overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` begin `stop`."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
