"""Weights & Biases. A run that is open already (a Trainer's, say) is written to; else one is opened for the folder.

`WANDB_MODE=offline` keeps all of it on disk, to be sent later with `wandb sync`. Steps of W&B count logging calls of
whoever logs, and a value for an earlier one is dropped, so looks carry a step of their own: `attnscope/step` is the
axis of everything under `attnscope/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.commands.watch.look import Look, RunHeader
from attnscope.commands.watch.writer import ROOT, Holding, images, scalars

# TensorBoard event files in the run folder: `tensorboard --logdir RUN`.
#
# Written by tensorboardX, which is one small package on top of what is there already: `torch.utils.tensorboard` asks
# for the whole of TensorBoard (a server, grpc) on the machine that trains.

IMAGES_EVERY = 10  # looks: an image is a thousand scalars


class TensorBoard:
    """`open`, `write` and `close`; event files go to `FOLDER/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: Any = None
        self._cards: dict[str, Any] = {}
        self._before: Look | None = None
        self._held = Holding()
        self._looks = 0

    def open(self, header: RunHeader) -> None:
        from tensorboardX import SummaryWriter

        after = header.resumed[-1] + 1 if header.resumed else None  # TensorBoard then hides what came later before
        self._writer = SummaryWriter(str(self._folder), purge_step=after)
        self._cards = dict(header.measures)

    def write(self, look: Look) -> None:
        for name, value in scalars(look, self._before).items():
            self._writer.add_scalar(name, value, look.step)
        self._writer.add_scalar(f"{ROOT}/alarms", self._held.count(look), look.step)
        for alarm in look.alarms:
            self._writer.add_text(f"{ROOT}/alarms", f"{alarm.severity}: {alarm.sentence} {alarm.advice}", look.step)
        if self._looks % IMAGES_EVERY == 0 or look.alarms:
            for name, picture in images(look, self._cards).items():
                self._writer.add_image(name, picture, look.step, dataformats="HWC")
        self._looks += 1
        self._before = look
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


# trackio: the local tracker with W&B's words. Its looks go to its own project, `attnscope`, with the training's steps.
#
# Its newest versions ask for a pillow older than ours: install it by itself, it is no extra of attnscope.


class Trackio:
    """`open`, `write` and `close`. Scalars and alarms; no images."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None
        self._before: Look | None = None
        self._held = Holding()

    def open(self, header: RunHeader) -> None:
        import trackio

        config = {"model": header.model, **{name: str(value) for name, value in header.settings.items()}}
        self._run = trackio.init(
            project="attnscope", name=self._folder.resolve().name, config=config, resume="allow", embed=False
        )

    def write(self, look: Look) -> None:
        held = self._held.count(look)
        self._run.log({**scalars(look, self._before), f"{ROOT}/alarms": held}, step=look.step)
        for alarm in look.alarms:
            if not alarm.ended:
                self._alert(alarm.rule, f"{alarm.sentence} {alarm.advice}".strip(), alarm.severity)
        self._before = look

    def _alert(self, title: str, text: str, severity: str) -> None:
        import trackio

        levels = trackio.AlertLevel
        level = {"note": levels.INFO, "warning": levels.WARN, "critical": levels.ERROR}[severity]
        self._run.alert(title, text=text, level=level)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


_LEVELS = {"note": "INFO", "warning": "WARN", "critical": "ERROR"}


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
