"""Name files after the text that they are about, so that a run on another text writes another file.

named_for("view.html", "The opposite of hot is")     view-the-opposite-of-hot-is.html
files_named(folder, "view.html")                     view.html and all view-*.html of the folder
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import Path

NAMED_BY_TEXT = frozenset({"explanation", "paths", "view"})  # stems of files that get a slug
LONGEST_SLUG = 40
LONGEST_LATER = 12  # letters of a target or second input in a slug that must be cut
HASHED = 6  # hexadecimal digits of a hash
NAMES_ANOTHER = re.compile(r"\d+")  # `scan` names the views of its sequences by numbers


def slug(*about: str | Path | None) -> str:
    """Return lower-case ASCII letters and digits of texts and file names, joined by hyphens: at most 40 characters.

    A short hash of everything follows if letters were left out. So texts of one slug differ at most in case, accents,
    spaces and signs.
    """
    given = [part.stem if isinstance(part, Path) else part for part in about if part is not None]
    parts = ["-".join(re.findall("[a-z0-9]+", _without_accents(text))) for text in given]
    whole = "-".join(filter(None, parts))
    lost = any(letter.isalnum() and not letter.isascii() for text in given for letter in _without_accents(text))
    if whole and not lost and len(whole) <= LONGEST_SLUG and not NAMES_ANOTHER.fullmatch(whole):
        return whole
    digest = hashlib.sha256("\0".join(given).encode("utf-8", "replace")).hexdigest()[:HASHED]
    first, *later = parts or [""]
    behind = "".join(f"-{_cut(part, LONGEST_LATER)}" for part in later[:2] if part)
    return f"{_cut(first, LONGEST_SLUG - HASHED - 1 - len(behind))}{behind}-{digest}".strip("-")


def _without_accents(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in apart if not unicodedata.combining(letter)).lower()


def _cut(words: str, most: int) -> str:
    """Return as many whole words as fit, or the beginning of the first one."""
    if len(words) <= most:
        return words
    return words[: most + 1].rpartition("-")[0] or words[:most]


def named_for(name: str, *about: str | Path | None) -> str:
    """Return the name of a file with the slug of what it is about."""
    path = Path(name)
    return f"{path.stem}-{slug(*about)}{path.suffix}"


def files_named(folder: Path, name: str) -> list[Path]:
    """Return what a folder has of this name, and of this name with a slug for records that are named by texts."""
    path = folder / name
    found = [path] if path.exists() else []
    stem, dot, suffixes = name.partition(".")
    if stem in NAMED_BY_TEXT and folder.is_dir():
        slugged = re.compile(rf"{stem}-[a-z0-9-]+{re.escape(dot + suffixes)}")
        found += sorted(one for one in folder.iterdir() if slugged.fullmatch(one.name))
    return found
