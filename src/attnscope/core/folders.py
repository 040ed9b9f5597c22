"""Folders of files, local or remote: a path, or an address such as s3://bucket/run that fsspec opens.

    open_folder("runs/shards").write("plan.json", data)         open_folder("s3://bucket/shards").names()

A file is written whole or not at all: a local file is renamed into place when it is complete, and an object of a store
such as S3 appears when all of it has arrived.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, write_atomically

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_address(text: object) -> bool:
    """Return whether this is an address for fsspec, not a path."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


@runtime_checkable
class Folder(Protocol):
    def __str__(self) -> str: ...
    def names(self) -> tuple[str, ...]: ...
    def holds(self, name: str) -> bool: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, content: bytes) -> None: ...
    def remove(self, name: str) -> None: ...


def open_folder(where: str | Path) -> Folder:
    if not str(where).strip():
        raise RefusalError("The name of the folder is empty: name a new folder.")
    if not is_address(where):
        return _LocalFolder(named_path(where, "folder"))
    address = str(where).rstrip("/")
    system, path = filesystem(address)
    if "file" in system.protocol:  # file:// is a local folder, where files are written atomically
        return _LocalFolder(named_path(path, "folder"))
    return _RemoteFolder(address, system, path)


def filesystem(address: str) -> tuple[Any, str]:
    """Return the file system of an address and the path on it."""
    try:
        import fsspec
    except ImportError as error:
        raise RefusalError(
            f"Reading or writing {address} needs fsspec: pip install 'attnscope[fsspec]', or give a path."
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError, OSError) as error:
        raise RefusalError(f"The address {address} cannot be opened ({error}): check it, or give a path.") from error
    return system, str(path)


@dataclass(frozen=True)
class _LocalFolder:
    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> tuple[str, ...]:
        try:
            return tuple(sorted(path.name for path in self.path.iterdir() if not path.name.startswith(".")))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise RefusalError(f"The folder '{self.path}' cannot be read ({error.strerror}): give another.") from None

    def holds(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise RefusalError(f"{self.path / name} cannot be read ({error.strerror}): check it.") from None

    def write(self, name: str, content: bytes) -> None:
        write_atomically(self.path / name, content, make_folder=True)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class _RemoteFolder:
    address: str
    system: Any
    path: str

    def __str__(self) -> str:
        return self.address

    def names(self) -> tuple[str, ...]:
        with self._refusing("cannot be listed", "check it"):
            self.system.invalidate_cache()  # other processes write there too
            try:
                return tuple(sorted(str(path).rsplit("/", 1)[-1] for path in self.system.ls(self.path, detail=False)))
            except FileNotFoundError:
                return ()

    def holds(self, name: str) -> bool:
        with self._refusing("cannot be reached", "check it"):
            self.system.invalidate_cache()
            return bool(self.system.isfile(f"{self.path}/{name}"))

    def read(self, name: str) -> bytes:
        with self._refusing("cannot be read", "check it", name):
            return bytes(self.system.cat_file(f"{self.path}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        with self._refusing("could not be written", "choose another place", name):
            self.system.makedirs(self.path, exist_ok=True)
            self.system.pipe_file(f"{self.path}/{name}", content)

    def remove(self, name: str) -> None:
        with self._refusing("could not be removed", "check it", name), suppress(FileNotFoundError):
            self.system.rm_file(f"{self.path}/{name}")

    @contextmanager
    def _refusing(self, problem: str, advice: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every store has its own errors
            reason = (str(error).strip().splitlines() or ["no reason given"])[0][:120]
            address = f"{self.address}/{name}" if name else self.address
            raise RefusalError(f"{address} {problem} ({type(error).__name__}: {reason}): {advice}.") from error
