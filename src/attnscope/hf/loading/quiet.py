"""Call transformers without its log lines, warnings, progress bars and prompts.

`load` itself checks for the problems that these would report (missing weights, broken files).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers import dynamic_module_utils
from transformers import modeling_gguf_pytorch_utils as gguf_reader
from transformers.utils import logging as notes

from attnscope.core.errors import RefusalError


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress log lines, Python warnings and progress bars inside this context.

    These settings are global. Contexts of several threads may overlap in any order: the first one to enter silences,
    and the last one to leave restores.
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


_OPEN: list[None] = []  # one entry for every open `quiet` context
_SILENCE = ExitStack()
_CHANGING = Lock()


@contextmanager
def _silenced() -> Iterator[None]:
    verbosity, bars, no_hub_bars = notes.get_verbosity(), notes.is_progress_bar_enabled(), are_progress_bars_disabled()
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
            (disable_progress_bars if no_hub_bars else enable_progress_bars)()
            notes.set_verbosity(verbosity)


def _no_bar(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    return items


# Code that comes with a model runs only if the caller allowed it.
#
# Three things can make transformers run foreign code: an `auto_map` in a configuration, a tokenizer or a processor; a
# folder `custom_generate`; and an attention implementation named after a hub repository, whose kernel is downloaded and
# imported. By default transformers asks on standard input, where a corpus that is piped in would answer. So
# `trust_remote_code` is always passed, and the prompt is disabled.

_IMPLEMENTATIONS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


def pretrained(cls: Any, folder: Path, *, trust_remote_code: bool, **options: Any) -> Any:
    """Call `cls.from_pretrained(folder)` on local files; run their code only if it is trusted."""
    with _no_questions():
        try:
            return cls.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True, **options)
        except ValueError as error:
            if trust_remote_code or "trust_remote_code" not in str(error):
                raise
            raise RefusalError(
                f"{cls.__name__.removeprefix('Auto')} of {folder} needs the code that comes with its files: read that "
                "code, and pass `trust_remote_code=True` if you trust it."
            ) from error


def refuse_foreign_kernels(config: Mapping[str, Any], name: str, *, trust_remote_code: bool) -> None:
    """Refuse a configuration, or a nested one, whose attention is code from a repository ("owner/kernel")."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            refuse_foreign_kernels(value, name, trust_remote_code=trust_remote_code)
        elif key in _IMPLEMENTATIONS and "/" in str(value) and not trust_remote_code:
            raise RefusalError(
                f"The configuration of {name} asks for attention code from the repository '{value}': remove {key} from "
                "it, or pass `trust_remote_code=True` if you trust that code."
            )


@contextmanager
def _no_questions() -> Iterator[None]:
    """Set the timeout of transformers' y/N prompt to 0, so that it refuses instead of reading standard input."""
    seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds
