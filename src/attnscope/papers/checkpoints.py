"""The session an experiment works at: finished parts are kept as JSON, unfinished training beside them.

    checkpoint/plan.json            everything that decides the numbers
    checkpoint/<part>.json          what a finished part returned
    checkpoint/<part>-state.*       where the training of an unfinished part stands

Every part passes through JSON whether it was just computed or read back, so a run that was interrupted and resumed
gives the same numbers, bit for bit, as an unbroken one. Ctrl-C and SIGTERM are let through between steps (when the work
says how far it is); a later one is let through at once.
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


class SavedSession:
    """A session with a folder; with None nothing is kept, and parts still pass through JSON."""

    def __init__(self, folder: Path | None, plan: Mapping[str, Any], progress: Advance = silent) -> None:
        self.folder = None if folder is None else folder / FOLDER
        self.plan = _through_json(plan)
        self.progress = progress
        self.stop = Stepwise(lambda: progress("stopping when this step is done; Ctrl-C again stops at once", 0, 0))
        self.seconds = 0.0  # behind the finished parts, in whichever sitting they were made

    def open(self, resume: bool) -> None:
        """Begin anew, or go on with what is there; a checkpoint of another plan is refused."""
        if self.folder is None:
            return
        plan = self.folder / "plan.json"
        if resume and plan.exists():
            before = _read(plan)
            if before != self.plan:
                other = ", ".join(name for name in self.plan if before.get(name) != self.plan[name])
                raise RefusalError(
                    f"The checkpoint in '{self.folder.parent}' was made with other settings ({other}): repeat them, or "
                    "leave out --resume to begin anew."
                )
            return
        if resume:
            done = " (a finished run leaves its results and no checkpoint)" if any(self.folder.parent.glob("*")) else ""
            raise RefusalError(f"There is nothing to go on with in '{self.folder.parent}'{done}: leave out --resume.")
        if self.folder.is_dir() and not plan.exists() and any(self.folder.iterdir()):
            raise RefusalError(
                f"The folder '{self.folder}' is there already and not of an experiment, so it is not emptied: name "
                "another place with --out."
            )
        self.clear()
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise RefusalError(
                f"The folder '{self.folder}' cannot be made ({error.strerror}): name another one with --out."
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
        # The trainer writes <place>.json and <place>.safetensors, which must not be taken for a finished part.
        return self._path(name, "-state")

    def _path(self, name: str, tail: str) -> Path | None:
        safe = re.sub(r"[^\w.-]+", "-", name)
        return None if self.folder is None else self.folder / f"{safe}{tail}"

    def interruptible(self) -> AbstractContextManager[None]:
        """Inside, the first Ctrl-C or SIGTERM waits for the next `advance`."""
        return self.stop.waiting()


def _json(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False).encode()


def _through_json(data: Any) -> Any:
    return json.loads(_json(plain(data)))


def _digest(answer: Any) -> str:
    return hashlib.sha256(_json(answer)).hexdigest()


def _read_part(path: Path) -> tuple[Any, float]:
    """What a finished part returned and how long it took. An answer of another type would fail deep inside the
    experiment, so nothing but what was written is handed to it."""
    kept = _read(path)
    took = kept.get("seconds")
    timed = isinstance(took, int | float) and not isinstance(took, bool) and took >= 0
    if "answer" not in kept or not timed or kept.get("sha256") != _digest(kept["answer"]):
        raise RefusalError(f"{path} is not as it was written: leave out --resume to begin anew.")
    return kept["answer"], float(took or 0.0)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise RefusalError(f"{path} cannot be read ({error}): leave out --resume to begin anew.") from error
    if not isinstance(found, dict):
        raise RefusalError(f"{path} is not as it was written: leave out --resume to begin anew.")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
