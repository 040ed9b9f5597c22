"""Weights & Biases. A run that is open already (a Trainer's, say) is written to; else one is opened for the folder.

`WANDB_MODE=offline` keeps all of it on disk, to be sent later with `wandb sync`. Steps of W&B count logging calls of
whoever logs, and a value for an earlier one is dropped, so looks carry a step of their own: `attnscope/step` is the
axis of everything under `attnscope/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.records.timeline.header import RunHeader
from attnscope.records.timeline.look import Look
from attnscope.watching.writers.names import ROOT, images, scalars
from attnscope.watching.writers.tensorboard import IMAGES_EVERY
from attnscope.watching.writers.writer import Holding

_LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}


class WeightsAndBiases:
    """`open`, `write` and `close`; a run that somebody else opened stays open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None
        self._own = False
        self._cards: dict[str, Any] = {}
        self._before: Look | None = None
        self._held = Holding()
        self._looks = 0

    def open(self, header: RunHeader) -> None:
        import wandb

        self._run = wandb.run
        if self._run is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            config = {"model": header.model, "attnscope": header.settings}
            self._run = wandb.init(
                project="attnscope", name=self._folder.resolve().name, dir=str(self._folder), config=config
            )
            self._own = True
        self._run.define_metric(f"{ROOT}/step")
        self._run.define_metric(f"{ROOT}/*", step_metric=f"{ROOT}/step")
        self._cards = dict(header.measures)

    def write(self, look: Look) -> None:
        import wandb

        said: dict[str, Any] = {f"{ROOT}/step": look.step, **scalars(look, self._before)}
        said[f"{ROOT}/alarms"] = self._held.count(look)
        if self._looks % IMAGES_EVERY == 0 or look.alarms:
            said |= {name: wandb.Image(picture) for name, picture in images(look, self._cards).items()}
        self._run.log(said)
        for alarm in look.alarms:
            if not alarm.ended:
                text = f"{alarm.sentence} {alarm.advice}".strip()
                self._run.alert(title=alarm.rule, text=text, level=_LEVELS[alarm.severity])
        self._looks += 1
        self._before = look

    def close(self) -> None:
        if self._run is not None and self._own:
            self._run.finish()
        self._run = None
