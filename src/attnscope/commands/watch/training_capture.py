"""Collect what a look records of the training itself: optimiser, batches and losses."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from attnscope.commands.watch.batch_capture import BatchCapture
from attnscope.commands.watch.optimizer_capture import OptimizerCapture
from attnscope.commands.watch.training_state import TrainingState
from attnscope.hf.intercepting.restoring import Restoring


class TrainingCapture:
    def __init__(self) -> None:
        self.batches, self.optimizer = BatchCapture(), OptimizerCapture()
        self._losses: list[float] = []  # of the steps since the last look

    def install(self, changes: Restoring, model: nn.Module, due: Callable[[], bool]) -> None:
        self.optimizer.install(changes, model, due)

    def add_loss(self, loss: float | None) -> None:
        self._losses += [] if loss is None or not math.isfinite(loss) else [loss]

    def state(self) -> TrainingState:
        """Return the numbers of this look, and start to collect for the next."""
        losses, self._losses = self._losses, []
        return TrainingState(
            learning_rate=self.optimizer.learning_rate,
            gradient_norm=self.optimizer.gradient_norm,
            optimizer_steps=self.optimizer.steps,
            mean_loss=sum(losses) / len(losses) if losses else None,
            **self.batches.summary(),
        )
