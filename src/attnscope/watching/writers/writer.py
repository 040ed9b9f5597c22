"""Several loggers at once, chosen by name; none of them can stop a training.

    writers = Writers.of(("tensorboard", "wandb"), folder="run/")
    writers.open(header); writers.write(look); writers.close()

One that is not installed is refused when it is chosen, with the command that installs it. One that fails later (its
disk is full, its server is gone) is said so in the log, once, and left out from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from attnscope.core.errors import RefusalError, nearest
from attnscope.records.timeline.header import RunHeader
from attnscope.records.timeline.look import Alarm, Look

LOG = logging.getLogger("attnscope.watch")

# name -> its file and class here, the package it needs, what installs that
KNOWN = MappingProxyType(
    {
        "tensorboard": ("tensorboard:TensorBoard", "tensorboardX", "pip install 'attnscope[tensorboard]'"),
        "wandb": ("wandb:WeightsAndBiases", "wandb", "pip install 'attnscope[wandb]'"),
        "trackio": ("trackio:Trackio", "trackio", "pip install trackio"),
    }
)


@runtime_checkable
class Writer(Protocol):
    """What a logger is to a watch."""

    def open(self, header: RunHeader) -> None: ...
    def write(self, look: Look) -> None: ...
    def close(self) -> None: ...


class Holding:
    """Which alarms hold: loggers are told how many."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str, int], Alarm] = {}

    def count(self, look: Look) -> int:
        for alarm in look.alarms:
            if alarm.ended:
                self._held.pop(alarm.key, None)
            else:
                self._held[alarm.key] = alarm
        return len(self._held)


class Writers:
    """A writer made of writers."""

    def __init__(self, chosen: Iterable[tuple[str, Writer]]) -> None:
        self._writers = dict(chosen)

    @classmethod
    def of(cls, chosen: str | Iterable[str | Writer], folder: Path | str) -> Writers:
        """From names (`"tensorboard,wandb"` or several) and writers of your own."""
        words = chosen.split(",") if isinstance(chosen, str) else list(chosen)
        made: list[tuple[str, Writer]] = []
        for word in words:
            if isinstance(word, str):
                if word.strip():
                    made.append((word.strip(), _made(word.strip(), Path(folder))))
            else:
                made.append((type(word).__name__, word))
        return cls(made)

    def open(self, header: RunHeader) -> None:
        self._each("open", header)

    def write(self, look: Look) -> None:
        self._each("write", look)

    def close(self) -> None:
        self._each("close")
        self._writers.clear()

    def __len__(self) -> int:
        return len(self._writers)

    def _each(self, what: str, *given: RunHeader | Look) -> None:
        for name, writer in list(self._writers.items()):
            try:
                getattr(writer, what)(*given)
            except Exception as error:  # whatever a logger throws, training comes first
                del self._writers[name]
                LOG.warning(
                    "%s is left out from now on (%s: %s); the training goes on.", name, type(error).__name__, error
                )


def _made(name: str, folder: Path) -> Writer:
    if name not in KNOWN:
        raise RefusalError(f"There is no writer called '{name}'.{nearest(name, KNOWN)}")
    home, package, command = KNOWN[name]
    if find_spec(package) is None:
        raise RefusalError(f"The writer '{name}' needs {package}, which is not installed: {command}.")
    module, _, kind = home.partition(":")
    made: Writer = getattr(import_module(f"attnscope.watching.writers.{module}"), kind)(folder)
    return made
