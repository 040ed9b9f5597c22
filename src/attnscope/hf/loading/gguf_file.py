"""GGUF files: a check that one is whole, and a header that is read once.

transformers parses the header (with its whole vocabulary) anew for the configuration, the weights and the
tokenizer, which takes longer than unpacking the weights. While a file is open here, all share one reader.
What transformers drops on the way, whether texts begin with BOS, is read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError


@dataclass(frozen=True)
class Header:
    """What a file says of BOS; None where it says nothing."""

    adds_bos: bool | None = None
    bos: int | None = None


@contextmanager
def open_gguf(path: Path) -> Iterator[Header]:
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
        yield _header(reader)
    finally:
        gguf.GGUFReader = reader_class


def _header(reader: Any) -> Header:
    """Fields of another type than these are none: nothing else is to be made of them."""
    adds, bos = (_value(reader, f"tokenizer.ggml.{name}") for name in ("add_bos_token", "bos_token_id"))
    whole = isinstance(bos, int) and not isinstance(bos, bool)
    return Header(adds if isinstance(adds, bool) else None, bos if whole else None)


def _value(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()
