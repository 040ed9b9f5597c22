"""trackio: the local tracker with W&B's words. Its looks go to its own project, `attnscope`, with the training's steps.

Its newest versions ask for a pillow older than ours: install it by itself, it is no extra of attnscope.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.records.timeline.header import RunHeader
from attnscope.records.timeline.look import Look
from attnscope.watching.writers.names import ROOT, scalars
from attnscope.watching.writers.writer import Holding


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
        level = {"info": levels.INFO, "warning": levels.WARN, "critical": levels.ERROR}[severity]
        self._run.alert(title, text=text, level=level)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
