"""Files are written whole or not at all, and read with a sentence where they cannot be."""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from pathlib import Path
from typing import Any

from attnscope.core.bounded import read_all, unpacked
from attnscope.core.drafts import clear_abandoned, draft_of, open_draft
from attnscope.core.errors import RefusalError
from attnscope.core.named_path import neighbour_meant
from attnscope.core.visible import parsed


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
