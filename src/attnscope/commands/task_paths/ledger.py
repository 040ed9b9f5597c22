"""The finished rows of a long list of prompts, one line each, so that an interrupted run loses one prompt at most.

The first line holds the settings; a run with other settings is refused. Every further line is one prompt's row. Lines
are only ever added, and forced to disk one by one: a killed process can leave one incomplete last line, which is
dropped. Numbers pass through JSON unchanged, so a resumed run gives what an unbroken one gives.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.commands.task_paths.record import PromptRow
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.core.progress import uninterrupted

FORMAT = "attnscope-task-paths-partial"


@dataclass
class Ledger:
    """The file of finished rows; `path=None` stores nothing."""

    path: Path | None
    settings: dict[str, Any]
    rows: list[PromptRow] = field(default_factory=list)

    def open(self, resume: bool) -> None:
        """Restore the rows of an interrupted run, or begin a new file."""
        if self.path is None:
            return
        if self.path.is_dir():
            raise RefusalError(f"'{self.path}' is a folder, and what is done is kept in a file there: rename it.")
        if resume and self.path.exists():
            self.rows = self._restored(self.path)
        lines = [self._header, *map(_line, self.rows)]
        write_atomically(self.path, "".join(lines).encode("utf-8"))  # without an incomplete last line

    def add(self, row: PromptRow) -> None:
        self.rows.append(row)
        if self.path is None:
            return
        with uninterrupted():
            try:
                with self.path.open("ab") as stream:
                    stream.write(_line(row).encode("utf-8"))
                    stream.flush()
                    os.fsync(stream.fileno())
            except OSError as error:
                raise RefusalError(
                    f"'{self.path}' cannot be written ({error.strerror}): make room there; continue with `resume=True`."
                ) from None

    def close(self) -> None:
        """Delete the file: the rows are saved elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    @property
    def _header(self) -> str:
        return json.dumps({"format": FORMAT, "settings": self.settings}) + "\n"

    def _restored(self, path: Path) -> list[PromptRow]:
        try:
            content = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RefusalError(f"'{path}' cannot be read ({error}): leave out `resume=` to begin anew.") from None
        first, *lines = content.split("\n")[:-1] or [""]  # drops an incomplete last line
        try:
            head = json.loads(first)
            settings = head["settings"] if head["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError):
            settings = None
        if not isinstance(settings, dict):
            raise RefusalError(f"'{path}' is not an interrupted run over prompts: leave out `resume=` to begin anew.")
        other = [name for name in self.settings if settings.get(name) != self.settings[name]]
        if "dtype" in other:  # weights in another precision have another hash
            other = [name for name in other if name != "model"]
        if other:
            raise RefusalError(
                f"The interrupted run in '{path}' had another {', '.join(other)}: give the same options again, or leave"
                " out `resume=` to begin anew."
            )
        try:
            return [decode(PromptRow, json.loads(line)) for line in lines]
        except (ValueError, FieldError, RecursionError):
            raise RefusalError(f"'{path}' is not as it was written: leave out `resume=` to begin anew.") from None


def _line(row: PromptRow) -> str:
    return json.dumps(encode(row), ensure_ascii=False, allow_nan=False) + "\n"
