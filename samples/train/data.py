"""The training text: Python's own help topics, split by topic and freed of repeats."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pydoc_data.topics import topics

HELDOUT_MODULUS = 10
HELDOUT_REMAINDER = 1
SHORT_PARAGRAPH = 40  # characters; headings and single words may repeat freely


@dataclass(frozen=True, slots=True)
class SplitText:
    """Documents to train on, and one text that no document repeats a paragraph of."""

    documents: tuple[str, ...]
    heldout: str


def is_heldout(topic: str) -> bool:
    """Assign a topic by the checksum of its name, the same way on every machine."""
    return zlib.crc32(topic.encode()) % HELDOUT_MODULUS == HELDOUT_REMAINDER


def drop_seen_paragraphs(text: str, seen: set[str]) -> str:
    """Remove the long paragraphs found in `seen`, and add the remaining ones to it."""
    kept = []
    for paragraph in text.split("\n\n"):
        key = " ".join(paragraph.split())
        if len(key) >= SHORT_PARAGRAPH:
            if key in seen:
                continue
            seen.add(key)
        kept.append(paragraph)
    return "\n\n".join(kept)


def deduplicate_documents(texts: Iterable[str], seen: set[str]) -> tuple[str, ...]:
    """Clean the texts in order; those with nothing new left vanish."""
    cleaned = (drop_seen_paragraphs(text, seen).strip() for text in texts)
    return tuple(text + "\n" for text in cleaned if len(text) >= SHORT_PARAGRAPH)


def load_split() -> SplitText:
    """Read the topics in sorted order.

    Topics quote each other (about a quarter of the text is there twice), so a split by topic
    alone would leak: the held-out paragraphs are marked as seen before the training text is read.
    """
    names = sorted(topics)
    seen: set[str] = set()
    heldout = deduplicate_documents((topics[n] for n in names if is_heldout(n)), seen)
    documents = deduplicate_documents((topics[n] for n in names if not is_heldout(n)), seen)
    return SplitText(documents, "\n".join(heldout))
