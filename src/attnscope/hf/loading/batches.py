"""Turn a corpus, in whatever form the caller gave it, into batches that a loaded model can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnscope.core.folders import is_address
from attnscope.data import stream as stream_module
from attnscope.data.batches import Batches
from attnscope.data.corpus import Corpus, Document
from attnscope.data.read import Gallery, corpus_path, gallery, read, repeated
from attnscope.data.shards import Cut, InMemory
from attnscope.data.stream import Stream, stored_bytes
from attnscope.hf.loading.feed import Streamed, feed, shown
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.targets import beginning_of_ready

_BLOCK = 1 << 16  # characters, and more for long windows
_BLOCK_PER_TOKEN = 64
Text = str | Path | Iterable[Document]
Ready = Batches | Mapping[str, Any] | Iterable[Mapping[str, Any]]


def text_of(corpus: Text | Ready | None, sampling: Sampling) -> Corpus | Gallery | Text | Ready | None:
    """Return the corpus that a path names, or `repeated`; anything else unchanged."""
    drawn = repeated(corpus) or gallery(corpus)
    if drawn is not None:
        return drawn
    return read(corpus, field=sampling.field) if isinstance(corpus, str | Path) else corpus


def text_or_stream(corpus: Text | Ready | None, sampling: Sampling) -> Corpus | Gallery | Stream | Text | Ready | None:
    """Return as `text_of`, but large texts as a stream that keeps one block in memory."""
    if isinstance(corpus, str | Path) and str(corpus) != "-" and not (repeated(corpus) or gallery(corpus)):
        here = corpus if is_address(corpus) else corpus_path(str(corpus))
        if stored_bytes(here) > stream_module.LARGE:
            return stream_module.stream(
                here, sampling.field, max(_BLOCK, _BLOCK_PER_TOKEN * (sampling.max_tokens or 0))
            )
    return text_of(corpus, sampling)


def files_of(corpus: object) -> dict[str, int]:
    """Return how many files of a folder were read and skipped; nothing for other corpora."""
    if not isinstance(corpus, Corpus | Stream) or not corpus.folder:
        return {}
    return {"files_read": len(corpus.files), "files_skipped": len(getattr(corpus, "skipped", ()))}


def batches_for(loaded: Loaded, corpus: Corpus | Gallery | Text | Ready | None, sampling: Sampling) -> Batches:
    """Return ready batches unchanged; cut text as `sampling` says; read pictures and sounds one by one."""
    if isinstance(corpus, Gallery):
        return shown(loaded, corpus, sampling)
    if corpus is None or isinstance(corpus, Corpus):
        return feed(loaded, corpus, sampling)
    if isinstance(corpus, Batches | Mapping):
        ready = corpus if isinstance(corpus, Batches) else Batches.of([corpus])
        return _as_they_are(loaded, ready, sampling)
    if isinstance(corpus, str | Path):
        return batches_for(loaded, text_of(corpus, sampling), sampling)
    things: list[Any] = list(corpus)
    if things and isinstance(things[0], Mapping):
        return _as_they_are(loaded, Batches.of(things), sampling)
    return feed(loaded, read(things), sampling)


def cut_for(loaded: Loaded, corpus: Corpus | Gallery | Stream | Text | Ready | None, sampling: Sampling) -> Cut:
    """Return the same batches in shards."""
    if isinstance(corpus, Stream):
        return Streamed(loaded, corpus, sampling)
    return InMemory(batches_for(loaded, corpus, sampling))


def _as_they_are(loaded: Loaded, ready: Batches, sampling: Sampling) -> Batches:
    if ready.beginning is not None and sampling.bos == "auto":
        return ready
    return replace(ready, beginning=beginning_of_ready(loaded, (batch.inputs for batch in ready), sampling.bos))
