"""`attnscope.watch`: look at attention while a model trains, from your own loop, transformers' Trainer or Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from attnscope.commands.watch.look import Alarm, AlarmSeverity
from attnscope.commands.watch.settings import ROWS, WatchOptions, WatchSettings
from attnscope.commands.watch.watch import Watch
from attnscope.commands.watch.writers import Writer

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

    from attnscope.hf.trainer import TrainerEvents


class _WatchFunction:
    """The class of `attnscope.watch`: a function with the attributes `for_trainer` and `for_lightning`."""

    def __call__(
        self,
        model: nn.Module,
        folder: str | Path,
        *,
        every: int = 50,
        rows: int | None = ROWS,
        probe: Mapping[str, Any] | None = None,
        measures: str | Iterable[str] = "default",
        thresholds: Mapping[str, float | int] | None = None,
        stop_on: AlarmSeverity | None = None,
        qk_clip: float | int | None = None,
        on_alarm: Callable[[Alarm], None] | None = None,
        name: str | None = None,
        resume_from: int | None = None,
        writers: str | Iterable[str | Writer] = (),
    ) -> Watch:
        """Look at the attention of a model every so many training steps, without changing the training.

        Parameters
        ----------
        model : torch.nn.Module
            The model in training. It may be wrapped by DistributedDataParallel or torch.compile.
        folder : str or Path
            Where the record goes; `attnscope timeline FOLDER` draws it.
        every : int
            Steps from one look to the next.
        rows : int or None
            Sequences of the batch in a look; None takes all.
        probe : mapping, optional
            A fixed batch to look at instead of the training batch, as the named arguments of `model.forward`.
        measures : str or iterable of str
            Names of measures and sets, as for `attnscope.scan`. "default" is cheap measures and those that alarms read.
        thresholds : mapping, optional
            Changed thresholds of alarms, such as `{"max_logit_growth.level": 50}`.
        stop_on : str, optional
            The lowest severity ("warning" or "critical") that ends the training.
        qk_clip : float, optional
            The largest logit that a head may reach. Heads above it are scaled down after the step (QK-Clip).
        on_alarm : callable, optional
            Called with every `Alarm` that begins, is renewed or ends.
        name : str, optional
            The name of the model in the record.
        resume_from : int, optional
            The step of the checkpoint from which training continues. Later looks in `folder` are dropped.
        writers : str or iterable
            Other loggers to write to: "tensorboard", "wandb", "trackio", or your own `Writer`.

        Returns
        -------
        Watch
            A context manager. Call its `step(loss=loss)` after every `optimizer.step()`, before `zero_grad()`.

        Raises
        ------
        RefusalError
            If a setting is unusable, attention cannot be seen in the model, or `folder` holds a run already.

        Examples
        --------
        >>> with attnscope.watch(model, "run/", every=50) as watch:  # doctest: +SKIP
        ...     for batch in loader:
        ...         loss = model(**batch).loss
        ...         loss.backward()
        ...         optimizer.step()
        ...         watch.step(loss=loss)
        ...         optimizer.zero_grad()
        """
        settings = WatchSettings(
            every=every,
            rows=rows,
            measures=measures,
            thresholds=thresholds,
            stop_on=stop_on,
            qk_clip=qk_clip,
            on_alarm=on_alarm,
            name=name,
            resume_from=resume_from,
            writers=writers,
        )
        return Watch(model, folder, settings, probe)

    def for_trainer(
        self, folder: str | Path, *, probe: Mapping[str, Any] | None = None, **settings: Unpack[WatchOptions]
    ) -> TrainerEvents:
        """Return a callback for transformers' Trainer and its subclasses. Takes the settings of `attnscope.watch`.

        >>> Trainer(..., callbacks=[attnscope.watch.for_trainer("run/", every=50)])  # doctest: +SKIP
        """
        from attnscope.commands.watch.frameworks import for_trainer

        return for_trainer(folder, WatchSettings.of(settings, "transformers' Trainer"), probe)

    def for_lightning(
        self,
        folder: str | Path,
        *,
        module: str | None = None,
        probe: Mapping[str, Any] | None = None,
        **settings: Unpack[WatchOptions],
    ) -> Callback:
        """Return a callback for Lightning. Takes the settings of `attnscope.watch`.

        `module` names the attribute of the LightningModule that holds the model, if it has several submodules.

        >>> lightning.Trainer(callbacks=[attnscope.watch.for_lightning("run/")])  # doctest: +SKIP
        """
        from attnscope.commands.watch.frameworks import for_lightning

        return for_lightning(folder, WatchSettings.of(settings, "Lightning"), probe, module)

    def __repr__(self) -> str:
        return "<attnscope.watch: watch(model, folder), watch.for_trainer(folder), watch.for_lightning(folder)>"


_WatchFunction.__doc__ = _WatchFunction.__call__.__doc__
watch = _WatchFunction()
