"""A file of finished prompts, one line each, so that an interrupted run loses at most one prompt.

The first line holds the settings; a run with other settings is refused. Every further line is the row of one prompt,
with the number of the prompt and a checksum. Lines are only ever added, and forced to disk one by one: a killed process
can leave one incomplete last line. A damaged line costs its own prompt, which is done again; the line is kept in
NAME.damaged. Numbers pass through JSON unchanged, so a resumed run gives the same result as an unbroken one.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.commands.task_paths.record import PromptRow
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.core.hashes import LOG, append_whole, checked_line, keep_beside, log_lines, unchecked
from attnscope.core.progress import uninterrupted
from attnscope.core.words import count

FORMAT = "attnscope-task-paths-partial"


@dataclass
class Ledger:
    """The file of finished rows; `path=None` stores nothing."""

    path: Path | None
    settings: dict[str, Any]
    rows: dict[int, PromptRow] = field(default_factory=dict)  # by the number of the prompt, from 0

    def open(self, resume: bool) -> None:
        """Restore the rows of an interrupted run, or begin a new file."""
        if self.path is None:
            return
        if self.path.is_dir():
            raise RefusalError(f"'{self.path}' is a folder, not a file: choose another checkpoint.")
        if resume and self.path.exists():
            self.rows = self._restored(self.path)
        lines = [self._header, *(_line(number, row) for number, row in sorted(self.rows.items()))]
        write_atomically(self.path, b"".join(lines))  # without an incomplete last line

    def add(self, number: int, row: PromptRow) -> None:
        self.rows[number] = row
        if self.path is None:
            return
        with uninterrupted():
            try:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
                try:
                    append_whole(descriptor, _line(number, row), sync=True)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise RefusalError(
                    f"'{self.path}' cannot be written ({error.strerror}): free space and pass `resume=True`."
                ) from None

    def close(self) -> None:
        """Delete the file, once the rows are saved in a record."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    @property
    def _header(self) -> bytes:
        return checked_line(json.dumps({"format": FORMAT, "settings": self.settings}).encode())

    def _restored(self, path: Path) -> dict[int, PromptRow]:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RefusalError(f"'{path}' cannot be read ({error}): leave out `resume=` to begin anew.") from None
        first, *lines = [content[line.start : line.stop] for line in log_lines(content) if line.whole] or [b""]
        try:
            head = json.loads(unchecked(first))
            settings = head["settings"] if head["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            settings = None
        if not isinstance(settings, dict):
            raise RefusalError(f"'{path}' is not an interrupted run over prompts: leave out `resume=` to start again.")
        other = [name for name in self.settings if settings.get(name) != self.settings[name]]
        if "dtype" in other:  # weights in another precision have another hash
            other = [name for name in other if name != "model"]
        if other:
            raise RefusalError(
                f"The interrupted run in '{path}' had another {', '.join(other)}: give the same options again, or leave"
                " out `resume=` to start again."
            )
        rows, damaged = {}, []
        for position, line in enumerate(lines):
            try:
                document = json.loads(unchecked(line))
                number = document.pop("number", position)  # older files have none
                rows[decode(int, number)] = decode(PromptRow, document)
            except (ValueError, TypeError, AttributeError, FieldError, RecursionError):
                damaged.append(line)
        if damaged:
            beside = path.with_name(f"{path.name}.damaged")
            LOG.warning(
                "%s of %s cannot be read: done again, and kept in %s.", count(len(damaged), "line"), path, beside
            )
            with contextlib.suppress(OSError):
                keep_beside(beside, b"".join(line + b"\n" for line in damaged))
        return rows


def _line(number: int, row: PromptRow) -> bytes:
    document = {"number": number, **encode(row)}
    return checked_line(json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8"))
