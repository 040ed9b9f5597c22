"""Several loggers at once, chosen by name; none of them can stop a training.

    writers = Writers.of(("tensorboard", "wandb"), folder="run/")
    writers.open(header); writers.write(look); writers.close()

One that is not installed is refused when it is chosen, with the command that installs it. One that fails later (its
disk is full, its server is gone) is said so in the log, once, and left out from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.watch.look import Alarm, Look, RunHeader, Values
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError, nearest
from attnscope.reports.colours import sequential

# What a look is called in a logger. These names are stable: dashboards are built on them.
#
#     attnscope/MEASURE/STACK/SITE/layer_L       the number of layer L; of measures of heads, their mean
#     attnscope/MEASURE/STACK/SITE/smallest      over all layers and heads; of the stream, over its places
#     attnscope/MEASURE/STACK/SITE/largest
#     attnscope/MEASURE/STACK/SITE/heads         an image, layers downwards and heads to the right (of heads only)
#     attnscope/alarms                           how many alarms hold, and where a logger has texts, their sentences
#     attnscope/loss, attnscope/tokens, attnscope/tokens_a_second, attnscope/cost
#
# A part that is not called `value` is named behind its measure: `attnscope/spike.second/model/stream/layer_3`. Numbers
# that are not finite are left out.

ROOT = "attnscope"
SQUARE = 12  # pixels of a head
_MISSING = (200, 200, 200)


def name_of(values: Values) -> str:
    measure = values.measure if values.part == "value" else f"{values.measure}.{values.part}"
    return f"{ROOT}/{measure}/{values.stack}/{values.site}"


def scalars(look: Look, before: Look | None = None) -> dict[str, float]:
    """All numbers of a look by name; `before` is the look that speed counts from."""
    said = {f"{ROOT}/cost": look.cost, f"{ROOT}/tokens": float(look.tokens)}
    if look.loss is not None and np.isfinite(look.loss):
        said[f"{ROOT}/loss"] = look.loss
    passed = look.seconds - (before.seconds if before else 0.0)
    if passed > 0:
        said[f"{ROOT}/tokens_a_second"] = (look.tokens - (before.tokens if before else 0)) / passed
    for values in look.values:
        name, numbers = name_of(values), values.numbers
        known = np.isfinite(numbers)
        if not known.any():
            continue
        said[f"{name}/smallest"] = float(numbers[known].min())
        said[f"{name}/largest"] = float(numbers[known].max())
        for layer, (row, there) in enumerate(zip(numbers, known, strict=True)):
            if there.any():
                said[f"{name}/layer_{layer}"] = float(np.mean(row[there]))
    return said


def images(look: Look, cards: Mapping[str, Card]) -> dict[str, NDArray[np.uint8]]:
    """A picture [height, width, 3] of every measure of heads, in the colours of the pages.

    Colours run over what a measure can be where its card bounds that, else over what this look has.
    """
    return {
        f"{name_of(values)}/heads": _picture(values.numbers, cards.get(values.measure))
        for values in look.values
        if values.numbers.ndim == 2 and np.isfinite(values.numbers).any()
    }


def _picture(numbers: NDArray[np.float64], card: Card | None) -> NDArray[np.uint8]:
    ramp = np.array([[int(colour[n : n + 2], 16) for n in (1, 3, 5)] for colour in sequential("light")], np.uint8)
    known = np.isfinite(numbers)
    bounded = card is not None and card.bound is None and np.isfinite([card.low, card.high]).all()
    low, high = (card.low, card.high) if card is not None and bounded else (numbers[known].min(), numbers[known].max())
    share = (np.where(known, numbers, low) - low) / (high - low if high > low else 1.0)
    pixels = ramp[np.rint(np.clip(share, 0, 1) * (len(ramp) - 1)).astype(int)]
    pixels[~known] = _MISSING
    return np.ascontiguousarray(pixels.repeat(SQUARE, axis=0).repeat(SQUARE, axis=1))


LOG = logging.getLogger("attnscope.watch")

# name -> its class in loggers.py, the package it needs, what installs that
KNOWN = MappingProxyType(
    {
        "tensorboard": ("TensorBoard", "tensorboardX", "pip install 'attnscope[tensorboard]'"),
        "wandb": ("WeightsAndBiases", "wandb", "pip install 'attnscope[wandb]'"),
        "trackio": ("Trackio", "trackio", "pip install trackio"),
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
    kind, package, command = KNOWN[name]
    if find_spec(package) is None:
        raise RefusalError(f"The writer '{name}' needs {package}, which is not installed: {command}.")
    made: Writer = getattr(import_module("attnscope.commands.watch.loggers"), kind)(folder)
    return made
