"""Files are written whole or not at all, and read with a sentence where they cannot be."""

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

# Reading with a bound: a device has no end, and a megabyte of gzip can unpack to gigabytes.

LARGEST = 1 << 30  # bytes of a corpus or a survey: both are held in memory, several times over
_PIECE = 1 << 20


@runtime_checkable
class Readable(Protocol):
    """A file, a pipe, or what unpacks one."""

    def read(self, size: int, /) -> bytes: ...


def read_all(stream: Readable, name: str, most: int | None = None) -> bytes:
    """Everything up to the end of `stream`, or a refusal where that is too far."""
    most = LARGEST if most is None else most
    pieces, length = [], 0
    while piece := stream.read(min(_PIECE, most + 1 - length)):
        pieces.append(piece)
        length += len(piece)
        if length > most:
            raise RefusalError(too_large(name, most))
    return b"".join(pieces)


def unpacked(data: bytes, name: str) -> bytes:
    """What gzip packed. Raises what `gzip` does where the data are damaged."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return read_all(stream, name)


def too_large(name: str, most: int) -> str:
    size = f"{most / 2**30:g} GB" if most >= 1 << 30 else f"{most / 2**20:g} MB"
    return f"{name} holds more than {size}, which is more than is read: give a part of it."


# Drafts: a file is written beside its place, under a name of its own, and moved there when it is whole.
#
# A draft is called `.NAME.HOST-PID-TOKEN.part`. Host and process say who writes it, so that the next writer of NAME can
# take away what a killed one left behind, and never what a living one is at.

ABANDONED = 3600.0  # seconds: a draft is written in one go, from memory, whoever does it
_LONGEST = 150  # bytes of NAME: with the rest, less than the 255 that a file name may have
_SUFFIX = re.compile(r"(?:([0-9a-f]{8})-(\d+)-)?[0-9a-f]{16}\.part")


def draft_of(path: Path) -> Path:
    return path.with_name(f"{_prefix(path)}{_host()}-{os.getpid()}-{secrets.token_hex(8)}.part")


def open_draft(draft: Path, path: Path) -> int:
    """A file descriptor for the draft, readable by those who may read what it replaces, and by nobody else."""
    before = replaced(path)
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    if before is not None:
        with contextlib.suppress(OSError):  # only root may give files away
            os.fchown(number, before.st_uid, before.st_gid)
        with contextlib.suppress(OSError):  # after the owner, and whatever the umask took away
            os.fchmod(number, mode)
    return number


def replaced(path: Path) -> os.stat_result | None:
    """What is at a place where a file should go: a file, nothing, or a refusal. Devices and pipes are not replaced."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device, a pipe or a socket"
        raise RefusalError(f"{path} could not be written, because it is {kind}: choose another place.")
    return found


def clear_abandoned(path: Path) -> None:
    """Take away the drafts of `path` that nobody writes any more. What cannot be taken away stays."""
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
    """Cut between characters: a name of 80 letters can have 320 bytes."""
    name = os.fsencode(path.name)[:_LONGEST].decode("utf-8", errors="ignore")
    return f".{name}."


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's, and alive
        return True
    return True


# Paths that people type: everything that cannot be a place in the file system is one sentence, whoever asks.
#
# Looking at a path can fail in more ways than that nothing is there: a name of 300 characters, a zero byte, a folder
# that may not be searched, a link to itself, a home of nobody. `Path.is_dir` passes most of these on as an OSError.

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


def write_atomically(path: Path, content: bytes, *, make_folder: bool = False) -> None:
    """All of the content or none of it: a draft in the same folder, forced to disk, then renamed.

    A file that is replaced keeps its modes; what is no file is not replaced. Drafts of killed writers are cleared away.
    A name that ends in .gz is compressed, without a date, so that equal content gives equal files.
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
        with contextlib.suppress(OSError):  # gone already after the rename, or the folder is not there at all
            draft.unlink()


def read_document(path: Path, wanted: str = "a file that attnscope wrote") -> Any:
    """The JSON document in a file, compressed or not; None where it is no JSON at all. `wanted` goes into refusals."""
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


# The folder in which attnscope keeps what it would otherwise measure again: widths of heads, for `capacity`.
#
# It is `attnscope` in XDG_CACHE_HOME, or in ~/.cache. Nothing in it is needed: `attnscope doctor --clear-cache` empties
# it.


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "attnscope"


def cache_size() -> int:
    """In bytes; 0 where there is none."""
    return sum(path.stat().st_size for path in cache_folder().rglob("*") if path.is_file())


def clear_cache() -> int:
    """How many bytes went away. A link in its place is taken away and not followed."""
    folder, size = cache_folder(), cache_size()
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    return size
