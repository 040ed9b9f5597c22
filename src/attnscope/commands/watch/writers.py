"""Write looks to other loggers: TensorBoard, Weights & Biases, trackio. A failing logger never stops the training.

    writers = Writers.of(("tensorboard", "wandb"), folder="run/")
    writers.open(header); writers.write(look); writers.close()

A logger that is not installed is refused, with the command that installs it. A logger that fails later (full disk, lost
server) is reported once in the log and skipped from then on.

Names are stable, because dashboards depend on them:

    attnscope/MEASURE/STACK/SITE/layer_L       the value of block L; for measures of heads, their mean
    attnscope/MEASURE/STACK/SITE/smallest      over all blocks and heads; for the stream, over its places
    attnscope/MEASURE/STACK/SITE/largest
    attnscope/MEASURE/STACK/SITE/heads         an image, blocks to the right and heads downwards (heads only)
    attnscope/alarms                           how many alarms are active, and their sentences if the logger takes text
    attnscope/loss, attnscope/tokens, attnscope/tokens_a_second, attnscope/cost

A part that is not called `value` follows its measure: `attnscope/spike.second/model/stream/layer_3`. Values that are
not finite are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.watch.look import Look, RunHeader
from attnscope.commands.watch.values import Values
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError, nearest
from attnscope.reports.colours import sequential

LOG = logging.getLogger("attnscope.watch")
ROOT = "attnscope"
SQUARE = 12  # pixels of a head
IMAGES_EVERY = 10  # looks between images: an image is as large as a thousand scalars
_MISSING = (200, 200, 200)
_LEVELS = {"note": "INFO", "warning": "WARN", "critical": "ERROR"}


def name_of(values: Values) -> str:
    measure = values.measure if values.part == "value" else f"{values.measure}.{values.part}"
    return f"{ROOT}/{measure}/{values.stack}/{values.site}"


def scalars(look: Look, before: Look | None = None) -> dict[str, float]:
    """Return all numbers of a look by name; speed counts from the look `before`."""
    numbers = {f"{ROOT}/cost": look.cost, f"{ROOT}/tokens": float(look.tokens)}
    if look.loss is not None and np.isfinite(look.loss):
        numbers[f"{ROOT}/loss"] = look.loss
    passed = look.seconds - (before.seconds if before else 0.0)
    if passed > 0:
        numbers[f"{ROOT}/tokens_a_second"] = (look.tokens - (before.tokens if before else 0)) / passed
    for values in look.values:
        name, finite = name_of(values), np.isfinite(values.numbers)
        if not finite.any():
            continue
        numbers[f"{name}/smallest"] = float(values.numbers[finite].min())
        numbers[f"{name}/largest"] = float(values.numbers[finite].max())
        for block, (row, known) in enumerate(zip(values.numbers, finite, strict=True)):
            if known.any():
                numbers[f"{name}/layer_{block}"] = float(np.mean(row[known]))
    return numbers


def images(look: Look, cards: Mapping[str, Card]) -> dict[str, NDArray[np.uint8]]:
    """Return an image [height, width, 3] for every measure of heads, in the colours of the pages.

    Colours span the bounds on the measure's card, or else the values of this look.
    """
    return {
        f"{name_of(values)}/heads": _image(values.numbers.T, cards.get(values.measure))
        for values in look.values
        if values.numbers.ndim == 2 and np.isfinite(values.numbers).any()
    }


def _image(numbers: NDArray[np.float64], card: Card | None) -> NDArray[np.uint8]:
    ramp = np.array([[int(colour[n : n + 2], 16) for n in (1, 3, 5)] for colour in sequential("light")], np.uint8)
    known = np.isfinite(numbers)
    low, high = numbers[known].min(), numbers[known].max()
    if card is not None and card.bound is None and np.isfinite([card.low, card.high]).all():
        low, high = card.low, card.high
    share = (np.where(known, numbers, low) - low) / (high - low if high > low else 1.0)
    pixels = ramp[np.rint(np.clip(share, 0, 1) * (len(ramp) - 1)).astype(int)]
    pixels[~known] = _MISSING
    return np.ascontiguousarray(pixels.repeat(SQUARE, axis=0).repeat(SQUARE, axis=1))


@runtime_checkable
class Writer(Protocol):
    """The interface of a logger."""

    def open(self, header: RunHeader) -> None: ...
    def write(self, look: Look) -> None: ...
    def close(self) -> None: ...


class _Logger:
    """The code that the three loggers share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None
        self._cards: dict[str, Card] = {}
        self._before: Look | None = None
        self._looks = 0
        self._holding: set[tuple[str, str, str, int]] = set()

    def numbers(self, look: Look) -> dict[str, float]:
        """Return the scalars of the next look, with the number of active alarms."""
        for alarm in look.alarms:
            (self._holding.discard if alarm.ended else self._holding.add)(alarm.key)
        numbers = {**scalars(look, self._before), f"{ROOT}/alarms": len(self._holding)}
        self._before = look
        return numbers

    def images(self, look: Look) -> dict[str, NDArray[np.uint8]]:
        """Return the images of a look, at every tenth look and at looks with alarms."""
        self._looks += 1
        return images(look, self._cards) if (self._looks - 1) % IMAGES_EVERY == 0 or look.alarms else {}


class TensorBoard(_Logger):
    """Event files in `FOLDER/tensorboard`, written by tensorboardX.

    `torch.utils.tensorboard` would need all of TensorBoard (a server, grpc) on the machine that trains.
    """

    def open(self, header: RunHeader) -> None:
        from tensorboardX import SummaryWriter

        after = header.resumed[-1] + 1 if header.resumed else None  # hides the later steps of the earlier run
        self._run = SummaryWriter(str(self._folder / "tensorboard"), purge_step=after)
        self._cards = dict(header.measures)

    def write(self, look: Look) -> None:
        for name, value in self.numbers(look).items():
            self._run.add_scalar(name, value, look.step)
        for alarm in look.alarms:
            self._run.add_text(
                f"{ROOT}/alarms", f"{alarm.severity}: {alarm.compared}. {alarm.sentence} {alarm.advice}", look.step
            )
        for name, image in self.images(look).items():
            self._run.add_image(name, image, look.step, dataformats="HWC")
        self._run.flush()

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


class Trackio(_Logger):
    """The local tracker with the API of W&B; scalars and alarms, no images.

    Its newest versions need a pillow older than ours, so it is not an extra of attnscope.
    """

    def open(self, header: RunHeader) -> None:
        import trackio

        config = {"model": header.model, **{name: str(value) for name, value in header.settings.items()}}
        name = self._folder.resolve().name
        self._run = trackio.init(project="attnscope", name=name, config=config, resume="allow", embed=False)

    def write(self, look: Look) -> None:
        import trackio

        self._run.log(self.numbers(look), step=look.step)
        for alarm in look.alarms:
            if not alarm.ended:
                level = getattr(trackio.AlertLevel, _LEVELS[alarm.severity])
                self._run.alert(
                    alarm.rule, text=f"{alarm.compared}. {alarm.sentence} {alarm.advice}".strip(), level=level
                )

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


class WeightsAndBiases(_Logger):
    """The open W&B run (a Trainer's, for example), or a new one for the folder.

    `WANDB_MODE=offline` keeps everything on disk for `wandb sync`. W&B counts its steps by logging calls and drops
    values of earlier steps, so looks have an axis of their own: `attnscope/step`.
    """

    _own = False  # whether `close` finishes the run

    def open(self, header: RunHeader) -> None:
        import wandb

        self._run = wandb.run
        if self._run is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            config = {"model": header.model, "attnscope": header.settings}
            name = self._folder.resolve().name
            self._run = wandb.init(project="attnscope", name=name, dir=str(self._folder), config=config)
            self._own = True
        self._run.define_metric(f"{ROOT}/step")
        self._run.define_metric(f"{ROOT}/*", step_metric=f"{ROOT}/step")
        self._cards = dict(header.measures)

    def write(self, look: Look) -> None:
        import wandb

        pictures = {name: wandb.Image(image) for name, image in self.images(look).items()}
        self._run.log({f"{ROOT}/step": look.step, **self.numbers(look), **pictures})
        for alarm in look.alarms:
            if not alarm.ended:
                text = f"{alarm.compared}. {alarm.sentence} {alarm.advice}".strip()
                self._run.alert(title=alarm.rule, text=text, level=_LEVELS[alarm.severity])

    def close(self) -> None:
        if self._run is not None and self._own:
            self._run.finish()
        self._run = None


# name -> class, the package it needs, the command that installs it
_LOGGERS: Mapping[str, tuple[type[TensorBoard | WeightsAndBiases | Trackio], str, str]] = {
    "tensorboard": (TensorBoard, "tensorboardX", "pip install 'attnscope[tensorboard]'"),
    "wandb": (WeightsAndBiases, "wandb", "pip install 'attnscope[wandb]'"),
    "trackio": (Trackio, "trackio", "pip install trackio"),
}


class Writers:
    """Several writers that are used as one."""

    def __init__(self, writers: Iterable[tuple[str, Writer]]) -> None:
        self._writers = dict(writers)

    @classmethod
    def of(cls, chosen: str | Iterable[str | Writer], folder: Path | str) -> Writers:
        """Return the writers with these names (`"tensorboard,wandb"` or several), plus any writer objects given."""
        writers: list[tuple[str, Writer]] = []
        for word in chosen.split(",") if isinstance(chosen, str) else chosen:
            if not isinstance(word, str):
                writers.append((type(word).__name__, word))
            elif name := word.strip():
                writers.append((name, _logger(name, Path(folder))))
        return cls(writers)

    def open(self, header: RunHeader) -> None:
        self._each("open", header)

    def write(self, look: Look) -> None:
        self._each("write", look)

    def close(self) -> None:
        self._each("close")
        self._writers.clear()

    def __len__(self) -> int:
        return len(self._writers)

    def _each(self, method: str, *arguments: RunHeader | Look) -> None:
        for name, writer in list(self._writers.items()):
            try:
                getattr(writer, method)(*arguments)
            except Exception as error:  # a logger may raise anything, and must not stop the training
                del self._writers[name]
                kind = type(error).__name__
                LOG.warning("%s is skipped from now on (%s: %s); the training goes on.", name, kind, error)


def _logger(name: str, folder: Path) -> Writer:
    if name not in _LOGGERS:
        raise RefusalError(f"There is no writer called '{name}'.{nearest(name, _LOGGERS)}")
    kind, package, command = _LOGGERS[name]
    if find_spec(package) is None:
        raise RefusalError(f"The writer '{name}' needs {package}, which is not installed: {command}.")
    return kind(folder)
