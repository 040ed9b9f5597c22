"""Read and write files: atomic writes, bounded reads, refusals in sentences, and the cache folder.

A file is written to a draft beside it, which is forced to disk and renamed when it is complete; then its folder is
forced to disk, so that a power cut cannot undo the renaming. A draft is called `.NAME.HOST-PID-TOKEN.part`. Host and
process identify its writer, so the next writer of NAME can remove the draft of a killed one, and never that of a living
one.
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
from typing import Any

from attnscope.core.errors import RefusalError, did_you_mean
from attnscope.core.opening import Readable, opened
from attnscope.core.words import parsed

LARGEST = 1 << 30  # bytes of a corpus or a survey: several copies of either are held in memory
_PIECE = 1 << 20
ABANDONED = 3600.0  # seconds after which a draft is removed: writing one takes a moment
_ABANDONED_FOLDER = 24 * ABANDONED  # writing the folder of a large model can take hours
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR)
_LONGEST = 150  # bytes of NAME: with the rest, less than the 255 that a file name may have
_SUFFIX = re.compile(r"(?:([0-9a-f]{8})-(\d+)-)?[0-9a-f]{16}\.part")
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR)
_SHOWN = 80


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
    return f"{name} is larger than {size}, the most that is read: give a part of it."


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
        with contextlib.suppress(OSError):  # the umask and fchown may have cleared bits
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
        raise RefusalError(f"{path} cannot be written, because it is {kind}: choose another path.")
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
                folder = entry.is_dir(follow_symlinks=False)
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                old = age > (_ABANDONED_FOLDER if folder else ABANDONED)
                if old or (host == _host() and not _lives(int(process))):
                    shutil.rmtree(entry.path) if folder else Path(entry.path).unlink()


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
    except OSError:  # alive, but owned by another user
        pass
    return True


def named_path(given: str | Path, what: str = "path") -> Path:
    """Return a typed path with ~ expanded, whether it exists or not, or refuse it.

    It is refused if the name is too long or holds a zero byte, if a folder cannot be entered, if a link leads to
    itself, or if the home folder is unknown. `Path.is_dir` would raise an OSError for most of these.
    """
    text = str(given)
    if "\0" in text:
        raise RefusalError(
            f"The {what} '{shortened(text)}' holds a zero byte, which file names cannot have: remove it."
        )
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        user = Path(text).parts[0]
        raise RefusalError(
            f"The {what} '{shortened(text)}' begins with {user}, who has no home folder here: write the full path."
        ) from None
    try:
        path.stat()
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise RefusalError(refusal_words(error, text, what)) from None
    except ValueError as error:  # the encoding of this file system cannot hold it
        raise RefusalError(f"The {what} '{shortened(text)}' cannot be a file name ({error}): give another.") from None
    return path


def neighbour_meant(path: Path, *others: str) -> str:
    """Return `Did you mean ...?` for a missing path: a file beside it, or one of the `others`."""
    try:
        beside = [neighbour.name for neighbour in path.parent.iterdir() if neighbour.name != path.name]
    except OSError:
        beside = []
    folder = "" if path.parent == Path() else f"{path.parent}/"
    return did_you_mean(str(path), [*(f"{folder}{name}" for name in beside), *others])


def refusal_words(error: OSError, text: str, what: str = "path") -> str:
    """Return a sentence on why a path cannot be used."""
    shown = shortened(text)
    if error.errno == errno.ENAMETOOLONG:
        return f"The {what} '{shown}' is longer than a file name can be: give a shorter one."
    if error.errno == errno.ELOOP:
        return f"The {what} '{shown}' is a link that leads back to itself: give the file it should point to."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"The {what} '{shown}' cannot be accessed ({error.strerror}): ask for permission, or give another."
    return f"The {what} '{shown}' cannot be used ({error.strerror or error}): give another."


def shortened(text: str) -> str:
    """Cut a text to the length that fits into a sentence."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk, where the file system can do that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_tree(folder: Path) -> None:
    """Force all files in a folder, and the names of all, to disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it, each on disk when this returns."""
    if folder.is_dir():
        return
    make_folders(folder.parent) if folder.parent != folder else None
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def write_atomically(path: Path, content: bytes, *, make_folder: bool = False) -> None:
    """Write all of the content or nothing, and return when it is on disk.

    A replaced file keeps its mode. A name that ends in .gz is compressed without a date, so that equal content gives
    equal files.
    """
    if path.name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    if make_folder:
        try:
            make_folders(path.parent)
        except OSError as error:
            raise RefusalError(
                f"The folder '{path.parent}' cannot be created ({error.strerror}): choose another folder."
            ) from None
    draft = draft_of(path)
    try:
        clear_abandoned(path)
        with os.fdopen(open_draft(draft, path), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        why = error.strerror or str(error)
        raise RefusalError(f"{path} could not be written ({why}): choose another path, or free some space.") from error
    finally:
        with contextlib.suppress(OSError):  # renamed already, or the folder is missing
            draft.unlink()


def read_document(path: Path, wanted: str = "a file that attnscope wrote") -> Any:
    """Return the JSON document in a file, compressed or not; None if it is not JSON. Refusals tell the user to give
    `wanted`."""
    content = _bytes(path, wanted)
    try:
        return parsed(content.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        if content.lstrip()[:40].replace(b" ", b"").replace(b"\n", b"").startswith(b'{"format":"attnscope-'):
            raise RefusalError(f"{path} is cut off or damaged: run the command that wrote it again.") from error
        return None


def _bytes(path: Path, wanted: str) -> bytes:
    try:
        with opened(path) as stream:
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
    """Return the size of the cache in bytes, 0 if there is no cache."""
    return sum(path.stat().st_size for path in cache_folder().rglob("*") if path.is_file())


def clear_cache() -> int:
    """Remove the cache and return its size in bytes. A link in its place is removed and not followed."""
    folder, size = cache_folder(), cache_size()
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    return size
