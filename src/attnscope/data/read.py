"""read(source) -> Corpus: text from a file, a folder, standard input, Python strings, or the embedded book.

    read("corpus.txt")   read("corpus.jsonl.gz", field="body")   read("folder/")   read("-")
    read(["one text", "another"])   read([("a source", "its target")])   read()

The embedded text is chapters I to IX of Alice's Adventures in Wonderland by Lewis Carroll (1865), in the public domain.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from pathlib import Path, PurePosixPath

from attnscope.core.errors import RefusalError
from attnscope.core.files import LARGEST, named_path, neighbour_meant, read_all, shortened, too_large
from attnscope.core.folders import filesystem, is_address
from attnscope.core.opening import opened
from attnscope.data.corpus import Corpus, Document
from attnscope.data.formats import KNOWN, documents, refuse_half_characters
from attnscope.data.medium import PICTURE_SUFFIXES, SOUND_SUFFIXES, names_medium

REPEATED = "repeated"  # the name of the corpus of repeated random tokens
EMBEDDED = "Alice's Adventures in Wonderland (embedded)"


def read(source: str | Path | Iterable[Document] | None = None, *, field: str = "text") -> Corpus:
    """Return the corpus that `source` names. A string is a path (`-`: standard input); give texts in a list."""
    if source is None:
        text = resources.files("attnscope.data").joinpath("embedded.txt").read_text(encoding="utf-8")
        return Corpus.of(EMBEDDED, [text])
    if not isinstance(source, str | Path):
        return Corpus.of("texts given in Python", _strings(source))
    if str(source) == "-":
        if sys.stdin is None:
            raise RefusalError("Standard input is closed: pipe a text into it, or name a file.")
        data = read_all(sys.stdin.buffer, "Standard input")
        return Corpus.of("standard input", documents(data, "Standard input", [], field))
    return (_from_elsewhere if is_address(source) else _from_path)(str(source), field)


def repeated(source: object) -> Corpus | None:
    """Return the corpus of repeated random tokens if `source` is 'repeated' and no file has that name, else None."""
    if str(source) != REPEATED or not isinstance(source, str) or Path(source).exists():
        return None
    return Corpus("random tokens, twice over", (), sha256(REPEATED.encode()).hexdigest(), drawn=True)


def _strings(texts: Iterable[Document]) -> list[Document]:
    kept = list(texts)
    for number, text in enumerate(kept):
        sides: tuple[object, ...] = text if isinstance(text, tuple) and len(text) == 2 else (text,)
        strings = [side for side in sides if isinstance(side, str)]
        if len(strings) < len(sides):
            raise RefusalError(
                f"Item {number} of the corpus is {type(text).__name__}, not text: give strings, or pairs of source and"
                " target."
            )
        for side in strings:
            refuse_half_characters(side, f"Item {number} of the corpus")
    return kept


def corpus_path(source: str) -> Path:
    """Return the file or folder that a string names; refuse it if it does not exist."""
    if not source.strip():
        raise RefusalError(
            "The corpus argument is empty: name a file or folder, or leave it out for the embedded text."
        )
    if _is_text(source) or not (path := named_path(source, "corpus")).exists():
        hint = "" if _is_text(source) else neighbour_meant(path)
        raise RefusalError(
            f"There is no corpus file or folder '{shortened(source)}': check the path, use - for standard input, "
            f"or in Python give texts in a list.{hint}"
        )
    return path


def _from_elsewhere(address: str, field: str) -> Corpus:
    """Read one object that fsspec opens, or all objects below an address."""
    system, path = filesystem(address)
    names = [path] if system.isfile(path) else sorted(system.find(path))
    if not names:
        raise RefusalError(f"There is nothing at {address}: check the address.")
    read: list[Document] = []
    for name in names:
        with system.open(name, "rb") as opened:
            read += documents(read_all(opened, name), name, PurePosixPath(name).suffixes, field)
    files = tuple(PurePosixPath(name).name for name in names)
    return Corpus.of(address, read, files, folder=names != [path])


def _from_path(source: str, field: str) -> Corpus:
    path = corpus_path(source)
    if path.is_dir():
        return _from_folder(path, field)
    return Corpus.of(str(path), documents(_bytes(path), str(path), path.suffixes, field), (path.name,))


def _is_text(source: str) -> bool:
    """Return whether a string looks like text rather than a path."""
    return "\0" in source or "\n" in source or (len(source) > 255 and " " in source)


def _from_folder(folder: Path, field: str) -> Corpus:
    """Read every file below a folder, sorted by name. Skip hidden files, and files of unknown suffix that are not
    text."""
    read: list[Document] = []
    files: list[str] = []
    skipped: list[str] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        try:
            read += documents(_bytes(path), str(path), path.suffixes, field)
            files.append(name)
        except RefusalError:
            if path.suffix.lower() in KNOWN:
                raise
            skipped.append(name)
        if sum(len("".join(document)) for document in read) > LARGEST:
            raise RefusalError(too_large(f"The folder {folder}", LARGEST))
    if not files:
        raise RefusalError(f"The folder {folder} holds no text file: put .txt, .jsonl or .parquet files in it.")
    return Corpus.of(str(folder), read, tuple(files), tuple(skipped), folder=True)


def _bytes(path: Path) -> bytes:
    try:
        with opened(path) as stream:
            return read_all(stream, str(path))
    except OSError as error:
        raise RefusalError(
            f"{path} cannot be read ({error.strerror or error}): check its permissions or give another file."
        ) from error


@dataclass(frozen=True)
class Gallery:
    """Files of pictures or sounds, in the order of their names. Only names are kept; files are read later."""

    name: str
    files: tuple[Path, ...]

    def drawn(self, samples: int | None, seed: int) -> tuple[Path, ...]:
        """Return at most `samples` files, drawn at random and sorted by name."""
        if samples is None or samples >= len(self.files):
            return self.files
        chosen = sorted(random.Random(seed).sample(range(len(self.files)), samples))
        return tuple(self.files[number] for number in chosen)


def gallery(source: object) -> Gallery | None:
    """Return the pictures or sounds at a path; None if there are none.

        gallery("photo.png")   gallery("photos/")   gallery("texts/") is None

    A folder with a text file in it is a corpus of texts.
    """
    if not isinstance(source, str | Path) or is_address(source) or str(source) in ("", "-"):
        return None
    path = Path(source).expanduser()
    try:
        if path.is_file():
            return Gallery(path.name, (path,)) if names_medium(str(path)) else None
        if not path.is_dir():
            return None
        files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    except OSError:
        return None
    if any(file.name.lower().endswith(KNOWN) for file in files):
        return None
    pictures = [file for file in files if file.suffix.lower() in PICTURE_SUFFIXES]
    sounds = [file for file in files if file.suffix.lower() in SOUND_SUFFIXES]
    if pictures and sounds:
        raise RefusalError(f"The folder {path} holds pictures and sounds: give a folder of one kind.")
    return Gallery(path.resolve().name, tuple(pictures or sounds)) if pictures or sounds else None
