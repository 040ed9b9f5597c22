"""A corpus of pictures or sounds: a file of one, or a folder of them. Only their names are kept; files are read later.

    gallery("photo.png")   gallery("photos/")   gallery("texts/") is None

A folder with a text file in it is a corpus of texts, as it always was, and what is no text in it is left out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from attnscope.core.errors import RefusalError
from attnscope.core.places import is_address
from attnscope.corpus.formats import KNOWN
from attnscope.corpus.medium import PICTURE_SUFFIXES, SOUND_SUFFIXES, names_medium


@dataclass(frozen=True)
class Gallery:
    """Files in the order of their names, of which a scan reads some or all."""

    name: str
    files: tuple[Path, ...]

    def drawn(self, samples: int | None, seed: int) -> tuple[Path, ...]:
        """So many of them at most, by chance, still in their order."""
        if samples is None or samples >= len(self.files):
            return self.files
        chosen = sorted(random.Random(seed).sample(range(len(self.files)), samples))
        return tuple(self.files[number] for number in chosen)


def gallery(source: object) -> Gallery | None:
    """The pictures or sounds that a path names; None where it names something else, or nothing."""
    if not isinstance(source, str | Path) or is_address(source) or str(source) in ("", "-"):
        return None
    path = Path(source).expanduser()
    try:
        if path.is_file():
            return Gallery(path.name, (path,)) if names_medium(str(path)) else None
        if not path.is_dir():
            return None
        files = sorted(one for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
    except OSError:
        return None
    if any(one.name.lower().endswith(KNOWN) for one in files):
        return None
    shown = [one for one in files if one.suffix.lower() in PICTURE_SUFFIXES]
    heard = [one for one in files if one.suffix.lower() in SOUND_SUFFIXES]
    if shown and heard:
        raise RefusalError(f"The folder {path} holds pictures and sounds: give a folder of one kind.")
    return Gallery(path.resolve().name, tuple(shown or heard)) if shown or heard else None
