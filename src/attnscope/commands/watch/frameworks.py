"""A watch as a callback of transformers' Trainer, and of trainers made of it (TRL's, say).

The Trainer tells callbacks neither the batch nor the loss: both are taken from the model's own forward, whose output
has the loss where labels were given. A trainer that computes its loss outside the model leaves it out of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attnscope.commands.watch.settings import Settings
from attnscope.commands.watch.watch import Watch
from attnscope.core.errors import RefusalError
from attnscope.hf.trainer import TrainerEvents

# A watch as a callback of Lightning (2.6, extra `lightning`).
#
# A LightningModule holds the model that its training_step calls: its only part with parameters, or the attribute that
# `module` names. Gradients are read before Lightning clips them, the loss is what training_step gave (Lightning divides
# it by the number of accumulated batches, so that their sum is that of the step).


def for_lightning(folder: str | Path, settings: Settings, probe: Mapping[str, Any] | None, module: str | None) -> Any:
    """The class is made here because its base is in a package that may not be there."""
    package = next((name for name in ("lightning", "pytorch_lightning") if find_spec(name) is not None), None)
    if package is None:
        raise RefusalError("Lightning is not installed: pip install 'attnscope[lightning]'.")
    if package == "lightning":
        from lightning.pytorch.callbacks import Callback
    else:
        from pytorch_lightning.callbacks import Callback

    class Watching(Callback):  # type: ignore[misc]
        """Hooks of Lightning, handed on."""

        def __init__(self) -> None:
            self.followed = FollowedModule(folder, settings, probe, module)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.followed.begins(pl_module, int(trainer.global_step))

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self.followed.before_update()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.followed.after_batch(outputs, int(trainer.global_step)):
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.followed.ends()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.followed.ends()

    return Watching()


class FollowedModule:
    """`watch` is there from the beginning of the training on."""

    def __init__(
        self, folder: str | Path, settings: Settings, probe: Mapping[str, Any] | None, module: str | None
    ) -> None:
        self._folder, self._settings, self._probe, self._module = folder, settings, probe, module
        self.watch: Watch | None = None
        self._step = 0
        self._loss: float | None = None

    def begins(self, owner: nn.Module, step: int) -> None:
        """A training that is resumed goes on with its record."""
        self.ends()
        settings = replace(self._settings, resume_from=step) if step else self._settings
        self.watch = Watch(_model_of(owner, self._module), self._folder, settings, self._probe)
        self.watch.raises = False
        self.watch.__enter__()
        self._step, self._loss = step, None

    def before_update(self) -> None:
        if self.watch is not None:
            self.watch.before_update()

    def after_batch(self, outputs: Any, step: int) -> bool:
        """Whether the training is to stop. Batches whose gradients are only added up are no step."""
        if self.watch is None:
            return False
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self._loss = (self._loss or 0.0) + float(loss.detach())
        if step > self._step:
            self._step = step
            told, self._loss = self._loss, None
            self.watch.step(loss=told)
        return self.watch.stopped is not None

    def ends(self) -> None:
        if self.watch is not None:
            self.watch.close()


def _model_of(owner: nn.Module, name: str | None) -> nn.Module:
    parts = {n: m for n, m in owner.named_children() if next(m.parameters(), None) is not None}
    if name is None and len(parts) == 1:
        return next(iter(parts.values()))
    if name is None or name not in dict(owner.named_modules()):
        said = "is not one of them" if name else "says which is the model"
        raise RefusalError(
            f"{type(owner).__name__} holds {', '.join(parts) or 'no module with parameters'}, and module={name!r} "
            f"{said}: give watch.for_lightning(..., module='NAME')."
        )
    return owner.get_submodule(name)


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
