"""`attnscope.watch`: the three ways in, one watch.

with attnscope.watch(model, "run/", every=50) as watch: ...                       a loop of your own
Trainer(..., callbacks=[attnscope.watch.for_trainer("run/", every=50)])           transformers
lightning.Trainer(callbacks=[attnscope.watch.for_lightning("run/")])              Lightning
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.commands.watch.settings import Settings
from attnscope.commands.watch.watch import Watch


class _Ways:
    """Called like a function. All ways take the words of `Settings` beside their own."""

    def __call__(
        self, model: nn.Module, folder: str | Path, *, probe: Mapping[str, Any] | None = None, **settings: Any
    ) -> Watch:
        """A watch for a loop of your own: a context manager whose `step` is called after every optimiser step.

        `every`: steps from look to look. `rows`: sequences of the batch that are looked at. `probe`: a batch to look at
        instead, the same at every look, as forward's named arguments. `measures`, `thresholds`, `stop_on`, `qk_clip`,
        `on_alarm`, `name`, `resume_from`: see `watching.settings.Settings`.
        """
        return Watch(model, folder, _settings(settings), probe)

    def for_trainer(self, folder: str | Path, *, probe: Mapping[str, Any] | None = None, **settings: Any) -> Any:
        """A callback for the Trainer of transformers and those made of it."""
        from attnscope.commands.watch.frameworks import for_trainer

        return for_trainer(folder, _settings(settings, "transformers' Trainer"), probe)

    def for_lightning(
        self,
        folder: str | Path,
        *,
        module: str | None = None,
        probe: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Any:
        """A callback for Lightning. `module` is the attribute of the LightningModule that holds the model."""
        from attnscope.commands.watch.frameworks import for_lightning

        return for_lightning(folder, _settings(settings, "Lightning"), probe, module)

    def __repr__(self) -> str:
        return "<attnscope.watch: watch(model, folder), watch.for_trainer(folder), watch.for_lightning(folder)>"


def _settings(given: Mapping[str, Any], framework: str | None = None) -> Settings:
    return Settings.of(given if framework is None else {"framework": framework, **given})


watch = _Ways()
