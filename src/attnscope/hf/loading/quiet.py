"""Silence around transformers: its notes, warnings and progress bars are not ours to show.

What matters in them (weights that are missing, files that are broken) is checked and said by `load` itself.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers import modeling_gguf_pytorch_utils as gguf_reader
from transformers.utils import logging as notes


@contextmanager
def quiet() -> Iterator[None]:
    """No log line below an error, no Python warning and no bar inside; everything as it was afterwards.

    All this is the whole process's. Contexts of several threads may overlap in any order: the first silences, and the
    last puts everything back.
    """
    with _CHANGING:
        if not _OPEN:
            _SILENCE.enter_context(_silenced())
        _OPEN.append(None)
    try:
        yield
    finally:
        with _CHANGING:
            _OPEN.pop()
            if not _OPEN:
                _SILENCE.close()


_OPEN: list[None] = []  # one entry for every context above that is open
_SILENCE = ExitStack()
_CHANGING = Lock()


@contextmanager
def _silenced() -> Iterator[None]:
    verbosity, bars, hub_bars = notes.get_verbosity(), notes.is_progress_bar_enabled(), _hub_bars()
    gguf_bar = gguf_reader.tqdm
    placing = logging.getLogger("accelerate")
    level = placing.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            notes.set_verbosity(logging.CRITICAL)
            placing.setLevel(logging.CRITICAL)
            notes.disable_progress_bar()
            gguf_reader.tqdm = _no_bar
            yield
        finally:
            placing.setLevel(level)
            gguf_reader.tqdm = gguf_bar
            if bars:
                notes.enable_progress_bar()
            (enable_progress_bars if hub_bars else disable_progress_bars)()
            notes.set_verbosity(verbosity)


def _hub_bars() -> bool:
    return not are_progress_bars_disabled()


def _no_bar(things: Iterable[Any], **_: Any) -> Iterable[Any]:
    return things
