"""Files that commands read and write: what cannot be is refused before any work is done."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from attnscope.core.bounded import read_all
from attnscope.core.errors import RefusalError
from attnscope.core.named_path import refusal_words, shortened
from attnscope.core.visible import whole
from attnscope.corpus.formats import plain_text
from attnscope.corpus.text_file import LONGEST_TEXT, TEXT_SUFFIXES, text_of_file

LONGEST_PATH = 1024


def checked_file(path: Path, option: str, suffixes: tuple[str, ...]) -> None:
    """Refuse a place that cannot be written, or a kind of file that is not made, before any work is done."""
    if path.suffix.lower() not in suffixes:
        raise RefusalError(f"{option} makes {' or '.join(suffixes)} files, not '{path.name}': give it such a name.")
    if path.is_dir():
        raise RefusalError(f"'{path}' is a folder: give {option} the name of a file.")
    if path.exists() and not path.is_file():
        raise RefusalError(f"'{path}' is a device, a pipe or a socket: give {option} the name of a file.")
    if not path.parent.is_dir():
        raise RefusalError(f"There is no folder '{path.parent}': make it, or choose another place with {option}.")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise RefusalError(f"'{path}' cannot be written: choose another place with {option}.")


def _is(kind: Callable[[Path], bool], path: Path) -> bool:
    """A line of text is tried as a name, and most texts cannot be one: too long, or with letters that no name has."""
    try:
        return kind(path)
    except PermissionError as error:
        raise RefusalError(refusal_words(error, str(path), "text file")) from None
    except (OSError, ValueError):
        return False


def text_or_medium(text: str) -> str | Path:
    """The path of a picture or a sound, where the text is the name of one; else what `text_or_file` gives."""
    from attnscope.corpus.medium import names_medium

    return Path(text) if names_medium(text) else text_or_file(text)


def text_or_file(text: str) -> str:
    """The text itself, what is in the file that it names, or standard input for `-`; a folder, or a file that is not
    there, is refused."""
    if text == "-":
        said = "Standard input"
        if sys.stdin is None:
            raise RefusalError(f"{said} is closed: pipe a text into it, or give the text itself.")
        return plain_text(read_all(sys.stdin.buffer, said, LONGEST_TEXT), said).removesuffix("\n")
    text = whole(text)  # arguments that are not UTF-8
    if not text.strip() or len(text) >= LONGEST_PATH or "\n" in text or "\0" in text:
        return text
    path = Path(text)
    if not _is(Path.is_file, path):
        one_word = not any(character.isspace() for character in text)
        if one_word and _is(Path.is_dir, path):
            raise RefusalError(f"'{text}' is a folder: give a text, or a file of one.")
        if one_word and path.suffix in TEXT_SUFFIXES:
            raise RefusalError(
                f"There is no file '{shortened(text)}': give a text, or the name of a file that is there."
            )
        return text
    return text_of_file(path)
