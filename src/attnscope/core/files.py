"""Read and write files: atomic writes, bounded reads, refusals in sentences, and the cache folder.

A file is written to a draft beside it, which is renamed when it is complete. A draft is called
`.NAME.HOST-PID-TOKEN.part`. Host and process identify its writer, so the next writer of NAME can remove the draft of a
killed one, and never that of a living one.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import re
import secrets
import shutil
import socket
import stat
import time
import zlib
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attnscope.core.errors import RefusalError, meant
from attnscope.core.words import parsed

LARGEST = 1 << 30  # bytes of a corpus or a survey: both are held in memory, several times over
_PIECE = 1 << 20
ABANDONED = 3600.0  # seconds after which a draft is removed: writing one takes a moment
_LONGEST = 150  # bytes of NAME: with the rest, less than the 255 that a file name may have
_SUFFIX = re.compile(r"(?:([0-9a-f]{8})-(\d+)-)?[0-9a-f]{16}\.part")
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR)
_SHOWN = 80


@runtime_checkable
class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_all(stream: Readable, name: str, most: int | None = None) -> bytes:
    """Read to the end, or refuse after `most` bytes: a device has no end, and gzip can unpack to gigabytes."""
    most = LARGEST if most is None else most
    pieces, length = [], 0
    while piece := stream.read(min(_PIECE, most + 1 - length)):
        pieces.append(piece)
        length += len(piece)
        if length > most:
            raise RefusalError(too_large(name, most))
    return b"".join(pieces)


def unpacked(data: bytes, name: str) -> bytes:
    """Unpack gzip data; damaged data raise the errors of `gzip`."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return read_all(stream, name)


def too_large(name: str, most: int) -> str:
    size = f"{most / 2**30:g} GB" if most >= 1 << 30 else f"{most / 2**20:g} MB"
    return f"{name} holds more than {size}, which is more than is read: give a part of it."


def draft_of(path: Path) -> Path:
    return path.with_name(f"{_prefix(path)}{_host()}-{os.getpid()}-{secrets.token_hex(8)}.part")


def open_draft(draft: Path, path: Path) -> int:
    """Open a draft with the owner and mode of the file that it replaces, and return its descriptor."""
    before = replaced(path)
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    if before is not None:
        with contextlib.suppress(OSError):  # only root may change the owner
            os.fchown(number, before.st_uid, before.st_gid)
        with contextlib.suppress(OSError):  # the umask, and fchown, may have removed bits
            os.fchmod(number, mode)
    return number


def replaced(path: Path) -> os.stat_result | None:
    """Return the stat of the file at a path, or None. Refuse folders, devices and pipes."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, a pipe or a socket"
        raise RefusalError(f"{path} could not be written, because it is {kind}: choose another place.")
    return status


def clear_abandoned(path: Path) -> None:
    """Remove the drafts of `path` whose writer is dead. Errors are ignored."""
    prefix = _prefix(path)
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            rest = entry.name.removeprefix(prefix)
            written_by = _SUFFIX.fullmatch(rest) if rest != entry.name else None
            if written_by is None:
                continue
            with contextlib.suppress(OSError):
                host, process = written_by.groups()
                old = time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED
                if old or (host == _host() and not _lives(int(process))):
                    Path(entry.path).unlink()


def _prefix(path: Path) -> str:
    """Cut the name at a character boundary: 80 letters can have 320 bytes."""
    name = os.fsencode(path.name)[:_LONGEST].decode("utf-8", errors="ignore")
    return f".{name}."


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # alive, and of another user
        pass
    return True


def named_path(given: str | Path, what: str = "path") -> Path:
    """Return a typed path with ~ expanded, whether it exists or not, or refuse it.

    Refused are a name of 300 characters, a zero byte, a folder without permission, a link to itself, an unknown home.
    `Path.is_dir` would raise an OSError for most of these.
    """
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
    except ValueError as error:  # not possible in the encoding of this file system
        raise RefusalError(f"The {what} '{shortened(text)}' cannot be a file name ({error}): give another.") from None
    return path


def neighbour_meant(path: Path, *others: str) -> str:
    """Return `Did you mean ...?` for a missing path: a file beside it, or one of the `others`."""
    try:
        beside = [neighbour.name for neighbour in path.parent.iterdir()]
    except OSError:
        beside = []
    folder = "" if path.parent == Path() else f"{path.parent}/"
    return meant(str(path), [*(f"{folder}{name}" for name in beside), *others])


def refusal_words(error: OSError, text: str, what: str = "path") -> str:
    """Return a sentence on why a path cannot be used."""
    shown = shortened(text)
    if error.errno == errno.ENAMETOOLONG:
        return f"The {what} '{shown}' is longer than a file name can be: give a shorter one."
    if error.errno == errno.ELOOP:
        return f"The {what} '{shown}' is a link that leads back to itself: give the file it should lead to."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"The {what} '{shown}' may not be looked at ({error.strerror}): ask for permission, or give another."
    return f"The {what} '{shown}' cannot be used ({error.strerror or error}): give another."


def shortened(text: str) -> str:
    """Cut a text to the length that fits into a sentence."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def write_atomically(path: Path, content: bytes, *, make_folder: bool = False) -> None:
    """Write all of the content or nothing: to a draft in the same folder, forced to disk, then renamed.

    A replaced file keeps its mode. A name that ends in .gz is compressed without a date, so that equal content gives
    equal files.
    """
    if path.name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    if make_folder:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RefusalError(
                f"The folder '{path.parent}' cannot be made ({error.strerror}): choose another place."
            ) from None
    draft = draft_of(path)
    try:
        clear_abandoned(path)
        with os.fdopen(open_draft(draft, path), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise RefusalError(f"{path} could not be written ({why}): choose another place, or make room there.") from error
    finally:
        with contextlib.suppress(OSError):  # renamed already, or the folder is missing
            draft.unlink()


def read_document(path: Path, wanted: str = "a file that attnscope wrote") -> Any:
    """Return the JSON document in a file, compressed or not; None if it is not JSON. `wanted` goes into refusals."""
    content = _bytes(path, wanted)
    try:
        return parsed(content.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        if content.lstrip()[:40].replace(b" ", b"").replace(b"\n", b"").startswith(b'{"format":"attnscope-'):
            raise RefusalError(f"{path} is cut off or damaged: run the command that wrote it again.") from error
        return None


def _bytes(path: Path, wanted: str) -> bytes:
    try:
        with path.open("rb") as stream:
            content = read_all(stream, str(path))
    except FileNotFoundError as error:
        raise RefusalError(f"There is no file {path}: give {wanted}.{neighbour_meant(path)}") from error
    except IsADirectoryError as error:
        raise RefusalError(f"{path} is a folder: give {wanted}.") from error
    except OSError as error:
        raise RefusalError(f"{path} cannot be read: {error.strerror or error}.") from error
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return unpacked(content, str(path))
    except (EOFError, OSError, zlib.error) as error:
        raise RefusalError(f"{path} is cut off or damaged (its compression ends early).") from error


def cache_folder() -> Path:
    """Return the folder of measured head widths, for `capacity`. `attnscope doctor --clear-cache` empties it."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "attnscope"


def cache_size() -> int:
    """Return the size in bytes, 0 without a cache."""
    return sum(path.stat().st_size for path in cache_folder().rglob("*") if path.is_file())


def clear_cache() -> int:
    """Remove the cache and return its size in bytes. A link in its place is removed and not followed."""
    folder, size = cache_folder(), cache_size()
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    return size
