"""A corpus: named documents and a hash that says which text it was, whatever file it came in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnscope.core.errors import RefusalError
from attnscope.core.words import count

Document = str | tuple[str, str]
"""A text, or a source and its target: what an encoder reads, and what a decoder is to write."""


@dataclass(frozen=True)
class Corpus:
    """Documents in order. `files` names what was read; `skipped` what a `folder` held that is not text. In a corpus of
    pairs documents are the sources, and `targets` has one for each. A `drawn` corpus has no documents: its sequences
    are drawn from a model's own vocabulary."""

    name: str
    documents: tuple[str, ...]
    sha256: str
    files: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    folder: bool = False
    targets: tuple[str, ...] | None = None
    drawn: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        documents: Iterable[Document],
        files: tuple[str, ...] = (),
        skipped: tuple[str, ...] = (),
        folder: bool = False,
    ) -> Corpus:
        """Documents without a visible character are left out, and pairs with one such side; a corpus of none is
        refused."""
        given = list(documents)
        pairs = [document for document in given if isinstance(document, tuple)]
        if pairs and len(pairs) < len(given):
            raise RefusalError(
                f"The corpus {name} holds pairs and single texts: give pairs of source and target only, or texts only."
            )
        rows = [row for row in ([one] if isinstance(one, str) else one for one in given) if all(map(str.strip, row))]
        if not rows:
            raise RefusalError(f"The corpus {name} is empty: give it at least a few sentences of text.")
        columns = tuple(zip(*rows, strict=True))
        sha256 = _digest(text for column in columns for text in column)
        return cls(name, columns[0], sha256, files, skipped, folder, columns[1] if pairs else None)

    @property
    def characters(self) -> int:
        return sum(map(len, self.documents))


def _digest(documents: Iterable[str]) -> str:
    """Each document counts with its length, so that moving the boundary between two changes the hash."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


# A corpus in two: text to train on, and text that is held out, which nothing that is trained has seen.
#
# Whole documents are held out, one in five and from all over the corpus, so that the two halves share no document: a
# name that stands in one half is no news in the other if both are of one article. A file of articles under headings
# in the manner of WikiText (` = Title = `) is as many documents as it has articles. A document of which the same text
# stands in the other half is left out of the held-out one: a model would only have to remember it.
#
# Fewer than four documents cannot be shared out so. They are cut into stretches where a line or a word ends, every
# fifth stretch is held out, and the split says so: intervals over stretches speak of more text from these documents.

EVERY = 5  # one document in so many is held out
ENOUGH = 4  # documents: with fewer, halves that share none leave a single one on one side
LONGEST = 8_000  # characters in a stretch: a few windows of text that belongs together
SHORTEST = 80
STRETCHES = 4 * EVERY  # that a short corpus is cut into, so that each half has some

_TITLE = re.compile(r"^ ?= [^=\n][^\n]* = ?$", re.MULTILINE)  # of an article; sections have more than one sign


@dataclass(frozen=True)
class Split:
    training: Corpus
    held_out: Corpus
    note: str = ""  # what a reader must know of how they were cut


def split(corpus: Corpus) -> Split:
    """The same two halves whenever the corpus is the same; pairs stay pairs, and each counts as a document."""
    texts = _documents(corpus)
    note = ""
    if len(texts) < ENOUGH and corpus.targets is None:
        note = (
            f"The corpus has {count(len(texts), 'document')}: stretches of it are held out and counted as texts, so"
            " that intervals speak of more text from there, not of other documents."
        )
        texts = list(_stretches([one for one in texts if isinstance(one, str)]))
    theirs = frozenset(range(EVERY - 1, len(texts), EVERY)) if note else held_out_places(len(texts))
    ours = [text for number, text in enumerate(texts) if number not in theirs]
    known = {_words(text) for text in ours}
    kept = [texts[number] for number in sorted(theirs) if _words(texts[number]) not in known]
    if not kept or not ours:
        raise RefusalError(
            f"The corpus {corpus.name} is too small to hold text out of training: it is {len(texts)} "
            f"piece{'s' if len(texts) != 1 else ''} of different text, and {EVERY} are needed. Give more text."
        )
    return Split(Corpus.of(corpus.name, ours), Corpus.of(f"{corpus.name} (held out)", kept), note)


def held_out_places(documents: int) -> frozenset[int]:
    """Which of so many documents are held out: one in five; of few up to four but never more than half, since an
    interval over one or two says next to nothing."""
    wanted = max(documents // EVERY, min(ENOUGH, documents // 2))
    return frozenset((number + 1) * documents // wanted - 1 for number in range(wanted))


def _documents(corpus: Corpus) -> list[Document]:
    if corpus.targets is not None:
        return list(zip(corpus.documents, corpus.targets, strict=True))
    return [article for document in corpus.documents for article in _articles(document)]


def _articles(document: str) -> list[str]:
    """A file of articles in its articles; any other document as it is."""
    starts = [found.start() for found in _TITLE.finditer(document)]
    if len(starts) < 2:
        return [document]
    bounds = [0, *starts[1:], len(document)]
    return [one for a, b in pairwise(bounds) if (one := document[a:b]).strip()]


def _stretches(documents: Sequence[str]) -> Iterator[str]:
    length = min(LONGEST, max(SHORTEST, sum(map(len, documents)) // STRETCHES))
    for document in documents:
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
