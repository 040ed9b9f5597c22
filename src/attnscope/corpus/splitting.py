"""A corpus in two: text to train on, and text that is held out, which nothing that is trained has seen.

Documents are cut into pieces where a line or a word ends, and every fifth piece is held out, so that both halves come
from all over the corpus. A piece of which the same text stands in the other half is left out of the held-out one: a
model would only have to remember it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnscope.core.errors import RefusalError
from attnscope.corpus.corpus import Corpus, Document

EVERY = 5  # one piece in so many is held out
LONGEST = 8_000  # characters in a piece: a few windows of text that belongs together
SHORTEST = 80
PIECES = 4 * EVERY  # that a short corpus is cut into, so that each half has some


@dataclass(frozen=True)
class Split:
    training: Corpus
    held_out: Corpus


def split(corpus: Corpus) -> Split:
    """The same two halves whenever the corpus is the same; pairs stay pairs."""
    pieces = list(_pieces(corpus))
    ours = [piece for number, piece in enumerate(pieces) if number % EVERY != EVERY - 1]
    known = {_words(piece) for piece in ours}
    theirs = [
        piece for number, piece in enumerate(pieces) if number % EVERY == EVERY - 1 and _words(piece) not in known
    ]
    if not theirs:
        raise RefusalError(
            f"The corpus {corpus.name} is too small to hold text out of training: it is {len(pieces)} "
            f"piece{'s' if len(pieces) != 1 else ''} of different text, and {EVERY} are needed. Give more text."
        )
    return Split(Corpus.of(corpus.name, ours), Corpus.of(f"{corpus.name} (held out)", theirs))


def _pieces(corpus: Corpus) -> Iterator[Document]:
    if corpus.targets is not None:
        yield from zip(corpus.documents, corpus.targets, strict=True)
        return
    length = min(LONGEST, max(SHORTEST, corpus.characters // PIECES))
    for document in corpus.documents:
        start = 0
        while len(document) - start > length:
            end = start + length
            after = document.rfind("\n", start + length // 2, end) + 1
            after = after or document.rfind(" ", start + length // 2, end) + 1
            yield document[start : after or end]
            start = after or end
        if document[start:].strip():
            yield document[start:]


def _words(piece: Document) -> str:
    """What two copies of a text have in common, however they are spaced."""
    return " ".join("\n".join([piece] if isinstance(piece, str) else piece).split())
