"""A corpus: named documents and a hash of their text, independent of the file format; and its training split.

Split. Whole documents are held out, one in five and from all over the corpus, so that the two halves share no document.
If both halves held parts of one article, a model could learn its names in one half and recall them in the other. A file
of articles under headings as in WikiText (` = Title = `) counts as one document per article. A held-out document whose
text is also in the training half is dropped, since a model could simply remember it. A corpus of fewer than four
documents is cut into stretches at the end of a line or word instead, and every fifth stretch is held out. A note says
so, because intervals over stretches hold for more text from these documents, not for other documents.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnscope.core.errors import RefusalError
from attnscope.core.words import count

Document = str | tuple[str, str]
"""A text, or a pair: the source that an encoder reads, and the target that a decoder should write."""


@dataclass(frozen=True)
class Corpus:
    """Documents in order. `files` are those that were read; `skipped` are files of a `folder` that are not text. In a
    corpus of pairs, documents are the sources, and `targets` has one target for each. A `drawn` corpus has no
    documents: its sequences are drawn from a model's own vocabulary."""

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
        """Build a corpus. Skip blank documents and pairs with a blank side; refuse an empty corpus."""
        texts = list(documents)
        pairs = [document for document in texts if isinstance(document, tuple)]
        if pairs and len(pairs) < len(texts):
            raise RefusalError(
                f"The corpus {name} holds pairs and single texts: give pairs of source and target only, or texts only."
            )
        rows = [row for row in ([t] if isinstance(t, str) else t for t in texts) if all(map(str.strip, row))]
        if not rows:
            raise RefusalError(f"The corpus {name} is empty: give it at least a few sentences of text.")
        columns = tuple(zip(*rows, strict=True))
        sha256 = _digest(text for column in columns for text in column)
        return cls(name, columns[0], sha256, files, skipped, folder, columns[1] if pairs else None)

    @property
    def characters(self) -> int:
        return sum(map(len, self.documents))


def _digest(documents: Iterable[str]) -> str:
    """Hash each document with its length, so that moving text from one document to the next changes the hash."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


EVERY = 5  # one in EVERY documents is held out
ENOUGH = 4  # documents; with fewer, one half would be a single document
LONGEST = 8_000  # characters in a stretch: enough for a few windows
SHORTEST = 80
STRETCHES = 4 * EVERY  # a short corpus is cut into about this many stretches, so that each half has some

# the heading of an article; headings of sections have more equals signs
_TITLE = re.compile(r"^ ?= [^=\n][^\n]* = ?$", re.MULTILINE)


@dataclass(frozen=True)
class Split:
    training: Corpus
    held_out: Corpus
    note: str = ""  # how the corpus was cut, if readers of the results must know


def split(corpus: Corpus) -> Split:
    """Split a corpus into training and held-out text, always in the same way. A pair counts as one document."""
    texts, note = _documents(corpus), ""
    if len(texts) < ENOUGH and corpus.targets is None:
        note = (
            f"The corpus has {count(len(texts), 'document')}: stretches of it are held out and counted as texts, so"
            " that intervals speak of more text from there, not of other documents."
        )
        texts = list(_stretches([text for text in texts if isinstance(text, str)]))
    held_out = frozenset(range(EVERY - 1, len(texts), EVERY)) if note else held_out_places(len(texts))
    training = [text for number, text in enumerate(texts) if number not in held_out]
    known = {_words(text) for text in training}
    kept = [texts[number] for number in sorted(held_out) if _words(texts[number]) not in known]
    if not kept or not training:
        if len(texts) >= EVERY:
            raise RefusalError(
                f"The corpus {corpus.name} repeats itself: each of its {len(texts)} pieces that would be held out is "
                "also among those to train on. Give text that does not repeat."
            )
        raise RefusalError(
            f"The corpus {corpus.name} is too small to hold text out of training: it is {len(texts)} "
            f"piece{'s' if len(texts) != 1 else ''} of different text, and {EVERY} are needed. Give more text."
        )
    return Split(Corpus.of(corpus.name, training), Corpus.of(f"{corpus.name} (held out)", kept), note)


def held_out_places(documents: int) -> frozenset[int]:
    """Return the indices of held-out documents: one in five.

    Of a small corpus up to four are held out, but never more than half: an interval over one or two documents says
    little.
    """
    wanted = max(documents // EVERY, min(ENOUGH, documents // 2))
    return frozenset((number + 1) * documents // wanted - 1 for number in range(wanted))


def _documents(corpus: Corpus) -> list[Document]:
    if corpus.targets is not None:
        return list(zip(corpus.documents, corpus.targets, strict=True))
    return [article for document in corpus.documents for article in _articles(document)]


def _articles(document: str) -> list[str]:
    """Split a file of articles; return any other document whole."""
    starts = [match.start() for match in _TITLE.finditer(document)]
    if len(starts) < 2:
        return [document]
    bounds = [0, *starts[1:], len(document)]
    return [article for a, b in pairwise(bounds) if (article := document[a:b]).strip()]


def _stretches(documents: Sequence[str]) -> Iterator[str]:
    length = min(LONGEST, max(SHORTEST, sum(map(len, documents)) // STRETCHES))
    for document in documents:
        *pieces, last = cut_text(document, length)
        yield from pieces
        if last.strip():
            yield last


def cut_text(text: str, length: int) -> Iterator[str]:
    """Yield pieces of up to `length` characters, cut at the end of a line or word if possible."""
    start = 0
    while len(text) - start > length:
        end = start + length
        after = text.rfind("\n", start + length // 2, end) + 1 or text.rfind(" ", start + length // 2, end) + 1
        yield text[start : after or end]
        start = after or end
    yield text[start:]


def _words(piece: Document) -> str:
    """Return the words of a text joined by single spaces, to compare texts that differ only in spacing."""
    return " ".join("\n".join([piece] if isinstance(piece, str) else piece).split())
