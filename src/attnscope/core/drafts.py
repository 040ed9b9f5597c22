"""Drafts: a file is written beside its place, under a name of its own, and moved there when it is whole.

A draft is called `.NAME.HOST-PID-TOKEN.part`. Host and process say who writes it, so that the next writer of NAME can
take away what a killed one left behind, and never what a living one is at.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import stat
import time
import zlib
from pathlib import Path

from attnscope.core.errors import RefusalError

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
