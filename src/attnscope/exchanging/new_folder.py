"""A folder that is written whole or not at all: it is made beside its place, and put there at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from attnscope.core.errors import RefusalError


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """A draft to write into; it becomes `place`, which must be new or empty, when nothing went wrong."""
    refuse_taken(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent))
    except OSError as error:
        raise RefusalError(f"{place} cannot be made ({error.strerror}): choose another place.") from error
    try:
        yield draft
        if place.exists():
            place.rmdir()
        draft.chmod(0o755)
        draft.rename(place)
    except (OSError, SafetensorError) as error:  # the second is what a full disk is to safetensors
        why = getattr(error, "strerror", None) or str(error)
        raise RefusalError(f"{place} could not be written ({why}): choose another place, or make room.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def refuse_taken(place: Path) -> None:
    """Asked before the work begins too: minutes of training are not to end here."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise RefusalError(f"{place} is there already and not an empty folder: choose another place.")
