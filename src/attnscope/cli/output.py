"""Standard streams, output folders and JSON."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import typer

from attnscope.core.errors import RefusalError
from attnscope.core.files import make_folders, refusal_words
from attnscope.core.names import files_named
from attnscope.core.words import clean

REFUSED = 2
CRASHED = 70  # an internal error, as sysexits.h numbers it
CLOSED_OUTPUT = 141  # what a shell reports after SIGPIPE; 1 is a gate that failed


def open_closed_streams() -> None:
    """Open standard streams that were closed, so that printing works and no file gets their descriptors."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    sys.stderr = cast(Any, ErrorTolerantStream(sys.stderr))


class ErrorTolerantStream:
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


def output_was_closed(leaving: SystemExit) -> bool:
    """Return whether the program ends because its output was closed, for which typer and rich exit with code 1."""
    return isinstance(leaving.__context__, BrokenPipeError)


def code_after_flush(code: int) -> int:
    """Flush standard output, report a failure, and return the exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or code_of(error)
    except ValueError:  # closed already
        pass
    return code


def code_of(error: OSError) -> int:
    """Report an error of the operating system, and return the exit code."""
    of_output = error.filename is None
    if of_output:
        _discard_output()
    if isinstance(error, BrokenPipeError):
        return CLOSED_OUTPUT
    if of_output:
        say(f"The output cannot be written ({error.strerror or error}): redirect it, or free some space.")
    else:
        say(refusal_words(error, os.fsdecode(error.filename) if error.filename else "", "file"))
    return REFUSED


def crashed(error: Exception) -> int:
    """Print the traceback of an error that attnscope did not expect and where to report it; return the exit code."""
    sys.stderr.write("".join(traceback.format_exception(error)))
    say(
        f"This is a defect of attnscope ({type(error).__name__}), not of what you gave it. Please report it with the "
        "lines above, the command, and what `attnscope doctor` prints, where you got attnscope from."
    )
    return CRASHED


def is_stream_error(error: OSError) -> bool:
    """Return whether an error without a file name is of an open stream: a full disk, or a closed reader."""
    return error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG)


def say(sentence: str) -> None:
    """Print one sentence on standard error, without escapes: names in it may come from files."""
    sys.stderr.write(f"attnscope: {clean(sentence)}\n")
    sys.stderr.flush()


def _discard_output() -> None:
    """Redirect standard output to the null device: Python would flush it again at exit and report the error twice."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


WRITTEN = (
    *("survey.json", "survey.partial.json", "report.html"),  # by a scan
    *("collapse.json", "collapse.html", "paths.json", "paths.html", "results.json", "page.html"),
    *("treatment.json", "treatment.html", "explanation.json", "explanation.html"),
    *("faithfulness.json", "faithfulness.html", "view.json", "view.html"),
    *("task_paths.json", "task_paths.partial.jsonl", "task_paths.html", "logit_paths.json", "logit_paths.html"),
    *("timeline.json", "timeline.html"),
    *("head.safetensors", "head.html", "capacity.json", "capacity.html", "head_widths.json", "head_widths.html"),
)


@contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """Make the output folder before any work is done; remove it again if it was new and is still empty."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # stays "~" if it is unknown
    if folder.resolve() in (Path(folder.resolve().anchor), home.resolve()):
        raise RefusalError(f"'{folder}' is the root folder or your home folder: name a new folder with --out.")
    for name in WRITTEN:
        for path in files_named(folder, name):
            if not path.is_file():
                raise RefusalError(
                    f"'{path}' is not a file and cannot be replaced by one: name another folder with --out."
                )
    new = not folder.exists()
    try:
        make_folders(folder)
    except OSError as error:
        raise RefusalError(
            f"The output folder '{folder}' cannot be created ({error.strerror}): name another one with --out."
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
        raise RefusalError(f"'{out}' is not a file name: give --out a name such as report.html.")
    return out


def print_json(data: Any) -> None:
    """Print strict JSON: NaN and infinities become null."""
    from attnscope.core.decoding import plain

    typer.echo(json.dumps(plain(data), indent=2))
