"""Checkpoints of an experiment: each finished part is saved as JSON, next to the state of unfinished training.

    checkpoint/plan.json            all settings that affect the results
    checkpoint/<part>.json          the result of a finished part
    checkpoint/<part>-state.*       the training state of an unfinished part

Every part passes through JSON whether it was just computed or read back, so a resumed run gives the same numbers, bit
for bit, as an unbroken one. The first Ctrl-C or SIGTERM waits for the next step (a call of `advance`); the second stops
at once.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError
from attnscope.core.files import make_folders, write_atomically
from attnscope.core.progress import Advance, Stepwise, silent

FOLDER = "checkpoint"
ANEW = "leave out `resume=` to begin anew."


class SavedSession:
    """A run that saves its parts in a folder. Without a folder nothing is saved, but parts still pass through JSON."""

    def __init__(self, folder: Path | None, plan: Mapping[str, Any], progress: Advance = silent) -> None:
        self.folder = None if folder is None else folder / FOLDER
        self.plan = _through_json(plan)
        self.progress = progress
        self.stop = Stepwise(lambda: progress("stopping when this step is done; Ctrl-C again stops at once", 0, 0))
        self.seconds = 0.0  # time spent on finished parts, in this run and in those it resumes

    def open(self, resume: bool) -> None:
        """Start the run, or continue it from its checkpoint. Refuse a checkpoint made with another plan."""
        if self.folder is None:
            return
        plan, where = self.folder / "plan.json", self.folder.parent
        if resume and plan.exists():
            before = _read(plan)
            if before != self.plan:
                other = ", ".join(name for name in self.plan if before.get(name) != self.plan[name])
                raise RefusalError(
                    f"The checkpoint in '{where}' was made with other settings ({other}): repeat them, or {ANEW}"
                )
            return
        if resume:
            done = " (a finished run leaves its results and no checkpoint)" if any(where.glob("*")) else ""
            raise RefusalError(f"There is nothing to resume in '{where}'{done}: leave out `resume=`.")
        if self.folder.is_dir() and not plan.exists() and any(not _is_draft(path) for path in self.folder.iterdir()):
            raise RefusalError(
                f"The folder '{self.folder}' exists and is not of an experiment, so it is not emptied: choose another "
                "one with `out=`."
            )
        self.clear()
        try:
            make_folders(self.folder)
        except OSError as error:
            raise RefusalError(
                f"The folder '{self.folder}' cannot be made ({error.strerror}): choose another one with `out=`."
            ) from None
        write_atomically(plan, _json(self.plan))

    def clear(self) -> None:
        if self.folder is not None and self.folder.is_dir():
            shutil.rmtree(self.folder)

    def advance(self, stage: str, done: int, total: int) -> None:
        self.stop.check()
        self.progress(stage, done, total)

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        path = self._path(name, ".json")
        if path is not None and path.exists():
            answer, took = _read_part(path)
            self.seconds += took
            return answer
        self.advance(name, 0, 0)
        start = time.monotonic()
        answer = work()
        took = time.monotonic() - start
        self.seconds += took
        answer = _through_json(answer)
        if path is not None:
            write_atomically(path, _json({"answer": answer, "seconds": round(took, 3), "sha256": _digest(answer)}))
        return answer

    def state_path(self, name: str) -> Path | None:
        # The trainer adds .json and .safetensors, so this name must differ from the finished part's file name.
        return self._path(name, "-state")

    def _path(self, name: str, tail: str) -> Path | None:
        safe = re.sub(r"[^\w.-]+", "-", name)
        return None if self.folder is None else self.folder / f"{safe}{tail}"

    def interruptible(self) -> AbstractContextManager[None]:
        """Delay the first Ctrl-C or SIGTERM until the next `advance`."""
        return self.stop.waiting()


def _is_draft(path: Path) -> bool:
    """Return whether this is a temporary file left by a process that was killed while writing."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _json(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False).encode()


def _through_json(data: Any) -> Any:
    return json.loads(_json(plain(data)))


def _digest(answer: Any) -> str:
    return hashlib.sha256(_json(answer)).hexdigest()


def _read_part(path: Path) -> tuple[Any, float]:
    """Return the result of a finished part and the seconds it took.

    Refuse a damaged file here, because errors further on would be obscure.
    """
    saved = _read(path)
    took = saved.get("seconds")
    timed = isinstance(took, int | float) and not isinstance(took, bool) and 0 <= took <= sys.float_info.max
    try:
        whole = "answer" in saved and saved.get("sha256") == _digest(saved["answer"])
    except (ValueError, RecursionError):  # 1e999 is read as infinity
        whole = False
    if not whole or not timed:
        raise RefusalError(f"{path} has been changed: {ANEW}")
    return saved["answer"], float(took or 0.0)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise RefusalError(f"{path} cannot be read ({error}): {ANEW}") from error
    if not isinstance(content, dict):
        raise RefusalError(f"{path} has been changed: {ANEW}")
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
