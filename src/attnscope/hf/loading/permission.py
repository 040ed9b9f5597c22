"""Code that comes with a model runs only where the caller allowed it: one door for everything transformers reads.

Three things can make transformers run code of a stranger: an `auto_map` in a configuration, a tokenizer or a
processor; a folder `custom_generate`; and an attention implementation with the name of a hub repository, whose
kernel is fetched and imported. Left to itself it asks on standard input whether to go on, and a corpus that is
piped in answers. So permission is always said, yes or no, and nothing here can ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import dynamic_module_utils

from attnscope.core.errors import RefusalError

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
                f"{cls.__name__.removeprefix('Auto')} of {folder} needs code that comes with its files: read that "
                "code, and pass `trust_remote_code=True` if you trust it."
            ) from error


def refuse_foreign_kernels(config: Mapping[str, Any], name: str, *, trust_remote_code: bool) -> None:
    """Refuse a configuration, or one nested in it, whose attention is code from a repository ("owner/kernel")."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            refuse_foreign_kernels(value, name, trust_remote_code=trust_remote_code)
        elif key in _IMPLEMENTATIONS and "/" in str(value) and not trust_remote_code:
            raise RefusalError(
                f"The configuration of {name} asks for attention code from the repository '{value}': take {key} out "
                "of it, or pass `trust_remote_code=True` if you trust that code."
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
