"""What commands share: where files go, and how plain data is printed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import typer

from attnscope.core.errors import RefusalError
from attnscope.core.files import refusal_words
from attnscope.core.words import clean

# Standard input, output and error that are closed, full, or read by nobody: an exit code and a sentence, no crash.

REFUSED = 2
NOBODY_READS = 141  # what a shell says of a program that SIGPIPE ended; 1 is a gate that failed


def open_closed_streams() -> None:
    """A program may be started without standard streams. Their numbers must not go to the files that it writes, and
    nobody who prints should have to ask whether there is an output."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    sys.stderr = cast(Any, Forgiving(sys.stderr))


class Forgiving:
    """Standard error: what cannot be said there (the disk is full, the reader is gone) is no reason to stop working."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def nobody_read(leaving: SystemExit) -> bool:
    """Whether the program is left because its output went nowhere: typer and rich both make that an exit code of 1."""
    return isinstance(leaving.__context__, BrokenPipeError)


def code_after_flush(code: int) -> int:
    """What is still on its way to standard output goes now, while something can be said about it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or code_of(error)
    except ValueError:  # closed by somebody already
        pass
    return code


def code_of(error: OSError) -> int:
    """Say what an operating system refused, and which code to leave with."""
    of_output = error.filename is None
    if of_output:
        _forget_output()
    if isinstance(error, BrokenPipeError):
        return NOBODY_READS
    if of_output:
        say(f"The output cannot be written ({error.strerror or error}): send it somewhere else, or make room.")
    else:
        say(refusal_words(error, os.fsdecode(error.filename) if error.filename else "", "file"))
    return REFUSED


def of_a_stream(error: OSError) -> bool:
    """Errors without a file name come from what is open already: a full disk, a reader that is gone."""
    return error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG)


def say(sentence: str) -> None:
    """One sentence on standard error. Names in it come from files, and a terminal would obey their escapes."""
    sys.stderr.write(f"attnscope: {clean(sentence)}\n")
    sys.stderr.flush()


def _forget_output() -> None:
    """Python would try once more to write what is left, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


WRITTEN = (
    *("survey.json", "survey.partial.json", "report.html"),  # by a scan
    *("collapse.json", "collapse.html", "paths.json", "paths.html", "results.json", "page.html"),
    *("treatment.json", "treatment.html", "explanation.json", "explanation.html"),
    *("faithfulness.json", "faithfulness.html", "view.json", "view.html"),
    *("task_paths.json", "task_paths.partial.jsonl", "task_paths.html"),
    *("timeline.json", "timeline.html"),
    *("head.safetensors", "head.html", "capacity.json", "capacity.html", "head_widths.json", "head_widths.html"),
)


@contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """Make the output folder now, so that an unwritable one is refused before any work is done.

    If the work is refused, a folder that was made for it and is still empty goes away again.
    """
    for name in WRITTEN:
        if (folder / name).exists() and not (folder / name).is_file():
            raise RefusalError(f"'{folder / name}' is no file, and one must go there: name another folder with --out.")
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusalError(
            f"The output folder '{folder}' cannot be made ({error.strerror}): name another one with --out."
        ) from None
    if not os.access(folder, os.W_OK):
        raise RefusalError(f"The output folder '{folder}' is not writable: name another one with --out.")
    try:
        yield folder
    finally:
        if new and not any(folder.iterdir()):
            folder.rmdir()


def page_path(out: Path) -> Path:
    """Where a page goes: a file, not a folder and not nothing."""
    if not out.name or (out.exists() and not out.is_file()):
        raise RefusalError(f"'{out}' is not a file name: give --out a name like report.html.")
    return out


def print_json(data: Any) -> None:
    """Strict JSON: numbers that JSON cannot hold become null."""
    from attnscope.core.decoding import plain

    typer.echo(json.dumps(plain(data), indent=2))
