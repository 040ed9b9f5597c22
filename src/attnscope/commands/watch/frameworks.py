"""Watch as a callback of transformers' Trainer (and trainers built on it, such as TRL's) and of Lightning.

The Trainer passes neither the batch nor the loss to callbacks. Both are taken from the model's forward, whose output
has the loss if labels were given. Otherwise the record has no loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attnscope.commands.watch.settings import WatchSettings
from attnscope.commands.watch.watch import Watch
from attnscope.core.errors import RefusalError
from attnscope.hf.trainer import TrainerEvents


class FollowedTraining:
    """A watch that starts and stops with the events of a trainer; `watch` is None before the training begins."""

    def __init__(self, folder: str | Path, settings: WatchSettings, probe: Mapping[str, Any] | None) -> None:
        self._folder, self._settings, self._probe = folder, settings, probe
        self.watch: Watch | None = None

    def begins(self, model: nn.Module, step: int) -> None:
        """Start a watch; `step` above 0 resumes the record."""
        self.ends()
        settings = replace(self._settings, resume_from=step) if step else self._settings
        self.watch = Watch(model, self._folder, settings, self._probe)
        self.watch.raises = False
        self.watch.__enter__()

    def before_update(self) -> None:
        if self.watch is not None:
            self.watch.before_update()

    def after_step(self, loss: float | None = None) -> bool:
        """Report a step, and return whether the training must stop."""
        if self.watch is None:
            return False
        self.watch.step(loss=loss)
        return self.watch.stopped is not None

    def ends(self) -> None:
        if self.watch is not None:
            self.watch.close()


def for_trainer(folder: str | Path, settings: WatchSettings, probe: Mapping[str, Any] | None) -> TrainerEvents:
    return TrainerEvents(FollowedTraining(folder, settings, probe))


def for_lightning(
    folder: str | Path, settings: WatchSettings, probe: Mapping[str, Any] | None, module: str | None
) -> Any:
    """Return a callback for Lightning 2.6. Its class is made here because Lightning may not be installed.

    Gradients are read before Lightning clips them. The loss is the output of training_step, which Lightning divides by
    the number of accumulated batches, so the losses of a step are summed.
    """
    package = next((name for name in ("lightning", "pytorch_lightning") if find_spec(name) is not None), None)
    if package is None:
        raise RefusalError("Lightning is not installed: pip install 'attnscope[lightning]'.")
    if package == "lightning":
        from lightning.pytorch.callbacks import Callback
    else:
        from pytorch_lightning.callbacks import Callback

    class LightningWatch(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.followed = FollowedTraining(folder, settings, probe)
            self._step = 0
            self._loss: float | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._step, self._loss = int(trainer.global_step), None
            self.followed.begins(_model_of(pl_module, module), self._step)

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self.followed.before_update()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if isinstance(loss, Tensor):
                self._loss = (self._loss or 0.0) + float(loss.detach())
            if trainer.global_step > self._step:  # otherwise gradients are still accumulating
                self._step, total, self._loss = int(trainer.global_step), self._loss, None
                self.followed.after_step(total)
            if self.followed.watch is not None and self.followed.watch.stopped is not None:
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.followed.ends()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.followed.ends()

    return LightningWatch()


def _model_of(owner: nn.Module, name: str | None) -> nn.Module:
    """Return the submodule called `name`, or the only one with parameters."""
    parts = {n: m for n, m in owner.named_children() if next(m.parameters(), None) is not None}
    if name is None and len(parts) == 1:
        return next(iter(parts.values()))
    if name is None or name not in dict(owner.named_modules()):
        problem = "is not one of them" if name else "does not say which is the model"
        raise RefusalError(
            f"{type(owner).__name__} holds {', '.join(parts) or 'no module with parameters'}, and module={name!r} "
            f"{problem}: give watch.for_lightning(..., module='NAME')."
        )
    return owner.get_submodule(name)
