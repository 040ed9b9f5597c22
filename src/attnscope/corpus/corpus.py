"""A corpus: named documents and a hash that says which text it was, whatever file it came in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from attnscope.core.errors import RefusalError


@dataclass(frozen=True)
class Corpus:
    """Documents in order. `files` names what was read; `skipped` what a `folder` held that is not text."""

    name: str
    documents: tuple[str, ...]
    sha256: str
    files: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    folder: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        documents: Iterable[str],
        files: tuple[str, ...] = (),
        skipped: tuple[str, ...] = (),
        folder: bool = False,
    ) -> Corpus:
        """Documents without a visible character are left out; a corpus of none is refused."""
        kept = tuple(document for document in documents if document.strip())
        if not kept:
            raise RefusalError(f"The corpus {name} is empty: give it at least a few sentences of text.")
        return cls(name, kept, _digest(kept), files, skipped, folder)

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
