"""A watch as a callback of transformers' Trainer, and of trainers made of it (TRL's, say).

The Trainer tells callbacks neither the batch nor the loss: both are taken from the model's own forward, whose output
has the loss where labels were given. A trainer that computes its loss outside the model leaves it out of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.hf.training.trainer_events import TrainerEvents
from attnscope.watching.settings import Settings
from attnscope.watching.watch import Watch


def for_trainer(folder: str | Path, settings: Settings, probe: Mapping[str, Any] | None) -> TrainerEvents:
    return TrainerEvents(FollowedTrainer(folder, settings, probe))


class FollowedTrainer:
    """`watch` is there from the beginning of the training on."""

    def __init__(self, folder: str | Path, settings: Settings, probe: Mapping[str, Any] | None) -> None:
        self._folder, self._settings, self._probe = folder, settings, probe
        self.watch: Watch | None = None

    def begins(self, model: nn.Module, step: int) -> None:
        """A training that is resumed goes on with its record."""
        settings = replace(self._settings, resume_from=step) if step else self._settings
        self.ends()
        self.watch = Watch(model, self._folder, settings, self._probe)
        self.watch.raises = False
        self.watch.__enter__()

    def before_update(self) -> None:
        if self.watch is not None:
            self.watch.before_update()

    def after_step(self) -> bool:
        if self.watch is None:
            return False
        self.watch.step()
        return self.watch.stopped is not None

    def ends(self) -> None:
        if self.watch is not None:
            self.watch.close()
