"""Files that commands will write: refused before any work is done, where they cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

from attnscope.core.errors import RefusalError


def checked_file(path: Path, option: str, suffixes: tuple[str, ...]) -> None:
    """Refuse a place that cannot be written, or a kind of file that is not made, before any work is done."""
    if path.suffix.lower() not in suffixes:
        raise RefusalError(f"{option} makes {' or '.join(suffixes)} files, not '{path.name}': give it such a name.")
    if path.is_dir():
        raise RefusalError(f"'{path}' is a folder: give {option} the name of a file.")
    if not path.parent.is_dir():
        raise RefusalError(f"There is no folder '{path.parent}': make it, or choose another place with {option}.")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise RefusalError(f"'{path}' cannot be written: choose another place with {option}.")
