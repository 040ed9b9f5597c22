"""A job without a model: squares of numbers, kept as files, with ways to fail on purpose."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError


@dataclass(frozen=True)
class Squares:
    folder: str
    kills: int = -1  # the task that kills its worker
    times: int = 1  # how often it does
    refuses: int = -1
    fails: int = -1
    unloadable: bool = False
    different: bool = False

    @contextmanager
    def open(self) -> Iterator[Opened]:
        if self.unloadable:
            raise RefusalError("There is no model 'nothing': check its name.")
        (Path(self.folder) / f"opened-{os.getpid()}").touch()
        yield Opened(self, str(os.getpid()) if self.different else "same")

    def called(self, task: Any) -> str:
        return f"shard {task}"


@dataclass(frozen=True)
class Opened:
    job: Squares
    agreed: str

    @property
    def hello(self) -> int:
        return os.getpid()

    def do(self, task: int) -> tuple[int, int, str]:
        job, folder = self.job, Path(self.job.folder)
        while job.different and len(list(folder.glob("opened-*"))) < 2:  # a single worker cannot disagree
            time.sleep(0.05)
        time.sleep(0.05 * job.different)
        if task == job.kills and len(list(folder.glob("death-*"))) < job.times:
            (folder / f"death-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if task == job.refuses:
            raise RefusalError("the disk is full: make room.")
        if task == job.fails:
            raise ValueError("seven is not a number")
        (folder / f"done-{task}-{os.getpid()}").touch()
        return task * task, os.getpid(), os.environ.get("OMP_NUM_THREADS", "")
