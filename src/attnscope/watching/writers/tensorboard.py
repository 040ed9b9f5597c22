"""TensorBoard event files in the run folder: `tensorboard --logdir RUN`.

Written by tensorboardX, which is one small package on top of what is there already: `torch.utils.tensorboard` asks for
the whole of TensorBoard (a server, grpc) on the machine that trains.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.records.timeline.header import RunHeader
from attnscope.records.timeline.look import Look
from attnscope.watching.writers.names import ROOT, images, scalars
from attnscope.watching.writers.writer import Holding

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
