"""Synthetic runs: heads of one block lose their entropy while the loss still falls, and then the loss spikes.

from tests.commands.timeline.sample import header, look, sample_timeline, write_run
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attnscope.commands.timeline.record import Timeline
from attnscope.commands.watch.look import Alarm, Look, RunHeader, RunStack, fingerprint
from attnscope.commands.watch.run_folder import RunLog
from attnscope.commands.watch.values import Values
from tests.commands.scan.survey.sample import CARDS

MEASURES = ("relative_residual", "spike", "entropy", "sink_mass")


def header(layers: int = 3, heads: int = 2, model: str = "a model", **settings: object) -> RunHeader:
    return RunHeader(
        attnscope="0.1.0",
        model=model,
        fingerprint=fingerprint("Model", {"blocks.weight": (layers, heads)}),
        stacks=(RunStack("model", layers, heads, True),),
        measures={name: CARDS[name] for name in MEASURES},
        settings={"every": 50, "framework": "loop", **settings},
        created="2026-01-01T00:00:00+00:00",
    )


def look(number: int, layers: int = 3, heads: int = 2, seed: int = 0, every: int = 50, falls: int = 12) -> Look:
    """Return one look. From look `falls` on, head 0 of block 1 loses its entropy; the loss rises ten looks later."""
    draw = np.random.default_rng((seed, number))
    step = every * (number + 1)
    entropy = 3.0 + 0.1 * draw.normal(size=(layers, heads))
    blind = max(0.0, 1 - 0.15 * max(0, number - falls))
    entropy[1 % layers, 0] *= blind
    late = max(0, number - falls - 10)
    return Look(
        step=step,
        loss=2.0 + 3.0 * math.exp(-number / 8) + 0.3 * late + 0.02 * float(draw.normal()),
        seconds=4.0 * (number + 1),
        tokens=2048 * step,
        cost=0.05,
        values=(
            Values.of("relative_residual", "value", "model", "stream", np.linspace(1, 0.2, layers + 1)),
            *(
                Values.of("spike", part, "model", "stream", size * (1 + 0.02 * number) * np.ones(layers + 1))
                for part, size in (("value", 30.0), ("second", 10.0), ("third", 4.0))
            ),
            Values.of("entropy", "value", "model", "self", entropy),
            Values.of("sink_mass", "value", "model", "self", draw.uniform(0.1, 0.3, size=(layers, heads))),
        ),
        alarms=tuple(_alarms(number, falls, every)),
    )


def _alarms(number: int, falls: int, every: int) -> Iterator[Alarm]:
    since = every * (falls + 3)
    for at, ended in ((falls + 4, False), (falls + 14, True)):
        if number == at:
            yield Alarm(
                rule="entropy_collapse",
                severity="warning",
                step=every * (number + 1),
                since=since,
                stack="model",
                site="self",
                layers=(1,),
                heads=((1, 0),),
                value=0.4,
                threshold=0.5,
                sentence=f"Entropy collapses in block 1, head 0, since step {since:,}; the loss was normal then.",
                advice="Lower the learning rate.",
                citation="arXiv:2303.06296",
                ended=ended,
            )


def looks(count: int = 30, **options: int) -> tuple[Look, ...]:
    return tuple(look(number, **options) for number in range(count))


def sample_timeline(count: int = 30, layers: int = 3, heads: int = 2, name: str = "run", seed: int = 0) -> Timeline:
    return Timeline(name, header(layers, heads), looks(count, layers=layers, heads=heads, seed=seed))


def write_run(folder: Path, count: int = 30) -> Path:
    with RunLog.create(folder, header()) as log:
        for one in looks(count):
            log.append(one)
    return folder
