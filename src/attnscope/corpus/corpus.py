"""A corpus: named documents and a hash that says which text it was, whatever file it came in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from attnscope.core.errors import RefusalError

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
