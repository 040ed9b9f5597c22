"""One text for one model to read at once: from a file, whole."""

from __future__ import annotations

from pathlib import Path

from attnscope.core.bounded import read_all
from attnscope.core.errors import RefusalError
from attnscope.corpus.formats import plain_text

LONGEST_TEXT = 1 << 26  # bytes: far past what any model has positions for
TEXT_SUFFIXES = (".txt", ".md", ".text", ".json", ".jsonl")
_LONGEST_NAME = 1024


def text_of_file(path: Path) -> str:
    """UTF-8, whatever the name; anything else is refused, with the place of its first wrong byte."""
    if path.is_dir():
        raise RefusalError(f"'{path}' is a folder: give a text, or a file of one.")
    try:
        with path.open("rb") as stream:
            return plain_text(read_all(stream, f"'{path}'", LONGEST_TEXT), f"'{path}'")
    except FileNotFoundError:
        raise RefusalError(f"There is no file '{path}': give a text, or the name of a file that is there.") from None
    except OSError as error:
        raise RefusalError(f"'{path}' cannot be read ({error.strerror}): give the text itself.") from None


def refuse_name_of_file(text: str) -> None:
    """In Python a string is a text and a Path a file. One word that is the name of a text file which lies here was
    meant as the file, and would be explained letter by letter."""
    if len(text) >= _LONGEST_NAME or any(c.isspace() or c == "\0" for c in text):
        return
    try:
        named = Path(text).suffix.lower() in TEXT_SUFFIXES and Path(text).is_file()
    except OSError:
        return
    if named:
        raise RefusalError(f"'{text}' is the name of a file here: give Path('{text}') to have it read.")
