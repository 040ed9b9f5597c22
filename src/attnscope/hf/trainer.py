"""Pass events of transformers' Trainer to a listener.

Order of events in a step: step_begin, substep_end (for every accumulated part but the last), pre_optimizer_step (with
clipped gradients), optimizer_step, step_end (without gradients). The batch is not passed: hook the model to get it.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import nn
from transformers import TrainerCallback


@runtime_checkable
class TrainingListener(Protocol):
    def begins(self, model: nn.Module, step: int) -> None: ...

    def before_update(self) -> None: ...

    def after_step(self) -> bool:
        """Return whether the training must stop."""

    def ends(self) -> None: ...


class TrainerEvents(TrainerCallback):  # type: ignore[misc]
    def __init__(self, listener: TrainingListener) -> None:
        self.listener = listener

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.listener.begins(kwargs["model"], int(state.global_step))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.listener.before_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.listener.after_step():
            control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.listener.ends()
