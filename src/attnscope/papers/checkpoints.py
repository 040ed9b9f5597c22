"""Checkpoints of an experiment: finished parts are saved as JSON, unfinished training next to them.

    checkpoint/plan.json            everything that decides the numbers
    checkpoint/<part>.json          what a finished part returned
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
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.core.progress import Advance, Stepwise, silent

FOLDER = "checkpoint"
ANEW = "leave out `resume=` to begin anew."


class SavedSession:
    """A session with a folder; with None nothing is saved, and parts still pass through JSON."""

    def __init__(self, folder: Path | None, plan: Mapping[str, Any], progress: Advance = silent) -> None:
        self.folder = None if folder is None else folder / FOLDER
        self.plan = _through_json(plan)
        self.progress = progress
        self.stop = Stepwise(lambda: progress("stopping when this step is done; Ctrl-C again stops at once", 0, 0))
        self.seconds = 0.0  # spent on finished parts, in this run and earlier ones

    def open(self, resume: bool) -> None:
        """Start, or continue from the checkpoint. Refuse a checkpoint of another plan."""
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
        if self.folder.is_dir() and not plan.exists() and any(self.folder.iterdir()):
            raise RefusalError(
                f"The folder '{self.folder}' exists and is not of an experiment, so it is not emptied: choose another "
                "one with `out=`."
            )
        self.clear()
        try:
            self.folder.mkdir(parents=True)
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
        # The trainer adds .json and .safetensors, so the name must differ from that of a finished part.
        return self._path(name, "-state")

    def _path(self, name: str, tail: str) -> Path | None:
        safe = re.sub(r"[^\w.-]+", "-", name)
        return None if self.folder is None else self.folder / f"{safe}{tail}"

    def interruptible(self) -> AbstractContextManager[None]:
        """Delay the first Ctrl-C or SIGTERM until the next `advance`."""
        return self.stop.waiting()


def _json(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False).encode()


def _through_json(data: Any) -> Any:
    return json.loads(_json(plain(data)))


def _digest(answer: Any) -> str:
    return hashlib.sha256(_json(answer)).hexdigest()


def _read_part(path: Path) -> tuple[Any, float]:
    """Return the result of a finished part, and its time. Refuse changed files, which would fail later without a
    reason.
    """
    saved = _read(path)
    took = saved.get("seconds")
    timed = isinstance(took, int | float) and not isinstance(took, bool) and took >= 0
    if "answer" not in saved or not timed or saved.get("sha256") != _digest(saved["answer"]):
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
