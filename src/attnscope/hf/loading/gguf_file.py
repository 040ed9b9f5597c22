"""GGUF files: a check that one is whole, and a header that is read once.

transformers parses the header (with its whole vocabulary) anew for the configuration, the weights and the
tokenizer, which takes longer than unpacking the weights. While a file is open here, all share one reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError


@contextmanager
def open_gguf(path: Path) -> Iterator[None]:
    """Inside, `gguf.GGUFReader(path)` is one shared reader; a file that is not whole is refused."""
    with path.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise RefusalError(f"{path} does not begin like a GGUF file: fetch it again.")
    if not all(map(find_spec, ("gguf", "accelerate"))):
        raise RefusalError(
            f"Reading {path.name} needs the packages gguf and accelerate: pip install 'attnscope[gguf]'."
        )
    import gguf

    reader_class = gguf.GGUFReader
    try:
        reader = reader_class(path)
    except Exception as error:  # it walks the mapped file, and fails in many ways where that ends early
        raise RefusalError(
            f"{path} is damaged or cut short ({type(error).__name__} while reading it): fetch it again."
        ) from error

    def shared(file: Any, *rest: Any) -> Any:
        return reader if Path(file) == path else reader_class(file, *rest)

    gguf.GGUFReader = shared
    try:
        yield
    finally:
        gguf.GGUFReader = reader_class
