"""Standard streams, output folders and JSON."""

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

REFUSED = 2
NOBODY_READS = 141  # what a shell reports after SIGPIPE; 1 is a gate that failed


def open_closed_streams() -> None:
    """Open standard streams that were closed, so that no file gets their numbers and printing always works."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    sys.stderr = cast(Any, Forgiving(sys.stderr))


class Forgiving:
    """Standard error that ignores failures to write: a full disk or a closed reader must not stop the work."""

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
    """Return whether the program ends because its output was closed: typer and rich make that exit code 1."""
    return isinstance(leaving.__context__, BrokenPipeError)


def code_after_flush(code: int) -> int:
    """Flush standard output while a failure can still be reported; return the exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or code_of(error)
    except ValueError:  # closed already
        pass
    return code


def code_of(error: OSError) -> int:
    """Report what the operating system refused, and return the exit code."""
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
    """Return whether an error without a file name is of an open stream: a full disk, or a closed reader."""
    return error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG)


def say(sentence: str) -> None:
    """Print one sentence on standard error, without escapes: names in it may come from files."""
    sys.stderr.write(f"attnscope: {clean(sentence)}\n")
    sys.stderr.flush()


def _forget_output() -> None:
    """Redirect standard output to nowhere: Python would try to flush it again, and complain."""
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
    """Make the output folder before any work is done; remove it again if it was new and is still empty."""
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
    """Refuse an --out that is not the name of a file."""
    if not out.name or (out.exists() and not out.is_file()):
        raise RefusalError(f"'{out}' is not a file name: give --out a name like report.html.")
    return out


def print_json(data: Any) -> None:
    """Print strict JSON: NaN and infinities become null."""
    from attnscope.core.decoding import plain

    typer.echo(json.dumps(plain(data), indent=2))
