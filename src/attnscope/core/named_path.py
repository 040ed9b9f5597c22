"""Paths that people type: everything that cannot be a place in the file system is one sentence, whoever asks.

Looking at a path can fail in more ways than that nothing is there: a name of 300 characters, a zero byte, a folder that
may not be searched, a link to itself, a home of nobody. `Path.is_dir` passes most of these on as an OSError.
"""

from __future__ import annotations

import errno
from pathlib import Path

from attnscope.core.errors import RefusalError, meant

_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR)
_SHOWN = 80


def named_path(given: str | Path, what: str = "path") -> Path:
    """What was typed as a path, with ~ filled in, whether something is there or not; or a refusal that names it."""
    text = str(given)
    if "\0" in text:
        raise RefusalError(f"The {what} '{shortened(text)}' holds a zero byte, which no file name has: leave it out.")
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        user = Path(text).parts[0]
        raise RefusalError(
            f"The {what} '{shortened(text)}' begins with {user}, who has no home here: write the folder out."
        ) from None
    try:
        path.stat()
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise RefusalError(refusal_words(error, text, what)) from None
    except ValueError as error:  # what the encoding of this file system cannot say
        raise RefusalError(f"The {what} '{shortened(text)}' cannot be a file name ({error}): give another.") from None
    return path


def neighbour_meant(path: Path, *others: str) -> str:
    """The tail of a refusal of what is not there: something beside it, or one of the `others`, may be meant."""
    try:
        beside = [one.name for one in path.parent.iterdir()]
    except OSError:
        beside = []
    folder = "" if path.parent == Path() else f"{path.parent}/"
    return meant(str(path), [*(f"{folder}{name}" for name in beside), *others])


def refusal_words(error: OSError, text: str, what: str = "path") -> str:
    """Why a place cannot be used, and what to do about it."""
    shown = shortened(text)
    if error.errno == errno.ENAMETOOLONG:
        return f"The {what} '{shown}' is longer than a file name can be: give a shorter one."
    if error.errno == errno.ELOOP:
        return f"The {what} '{shown}' is a link that leads back to itself: give the file it should lead to."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"The {what} '{shown}' may not be looked at ({error.strerror}): ask for permission, or give another."
    return f"The {what} '{shown}' cannot be used ({error.strerror or error}): give another."


def shortened(text: str) -> str:
    """Long enough to be recognised, short enough for a sentence."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
