"""Folders and files by name, here or elsewhere: a path, or an address such as s3://bucket/run that fsspec opens.

    place("runs/shards").write("plan.json", data)         place("s3://bucket/shards").names()

What is written is there whole or not at all: a file here is moved to its place when it is whole, and an object of a
store such as S3 appears when all of it has arrived.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, write_atomically

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_address(text: object) -> bool:
    """Whether this names something that fsspec opens, and not a path."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


@runtime_checkable
class Place(Protocol):
    """A folder that holds files."""

    def __str__(self) -> str: ...
    def names(self) -> tuple[str, ...]: ...
    def holds(self, name: str) -> bool: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, content: bytes) -> None: ...
    def remove(self, name: str) -> None: ...


def place(where: str | Path) -> Place:
    if not is_address(where):
        return _Here(named_path(where, "folder"))
    address = str(where).rstrip("/")
    system, path = filesystem(address)
    if "file" in system.protocol:  # a folder here after all, where a file must not be seen before it is whole
        return _Here(named_path(path, "folder"))
    return _Elsewhere(address, system, path)


def filesystem(address: str) -> tuple[Any, str]:
    """What fsspec makes of an address: a file system, and the path on it."""
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
class _Here:
    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> tuple[str, ...]:
        try:
            return tuple(sorted(one.name for one in self.path.iterdir() if not one.name.startswith(".")))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise RefusalError(f"The folder '{self.path}' cannot be read ({error.strerror}): name another.") from None

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
class _Elsewhere:
    address: str
    system: Any
    path: str

    def __str__(self) -> str:
        return self.address

    def names(self) -> tuple[str, ...]:
        try:
            self.system.invalidate_cache()  # others write there too
            return tuple(sorted(str(one).rsplit("/", 1)[-1] for one in self.system.ls(self.path, detail=False)))
        except FileNotFoundError:
            return ()
        except Exception as error:  # every store has errors of its own
            raise RefusalError(f"{self.address} cannot be listed ({_reason(error)}): check it.") from error

    def holds(self, name: str) -> bool:
        try:
            self.system.invalidate_cache()
            return bool(self.system.isfile(f"{self.path}/{name}"))
        except Exception as error:
            raise RefusalError(f"{self.address} cannot be asked ({_reason(error)}): check it.") from error

    def read(self, name: str) -> bytes:
        try:
            return bytes(self.system.cat_file(f"{self.path}/{name}"))
        except Exception as error:
            raise RefusalError(f"{self.address}/{name} cannot be read ({_reason(error)}): check it.") from error

    def write(self, name: str, content: bytes) -> None:
        try:
            self.system.makedirs(self.path, exist_ok=True)
            self.system.pipe_file(f"{self.path}/{name}", content)
        except Exception as error:
            raise RefusalError(
                f"{self.address}/{name} could not be written ({_reason(error)}): choose another place."
            ) from error

    def remove(self, name: str) -> None:
        try:
            self.system.rm_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return
        except Exception as error:
            raise RefusalError(f"{self.address}/{name} could not be removed ({_reason(error)}).") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0][:120]}"
