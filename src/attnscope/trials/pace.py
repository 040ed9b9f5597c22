"""How long a training step takes with each attention, as a ratio to one of them in the same run.

Steps of all models take turns, so that whatever else the machine does falls on all alike; of each model the fastest
step counts, in processor time. A ratio of two fastest steps says what the arithmetic costs, not how busy it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F

from attnscope.core.experiment import Desk
from attnscope.models.decoder import Decoder
from attnscope.trials.sinks_and_spikes import Growth


def paces(growths: Mapping[str, Growth], beside: str, repeats: int, seed: int, desk: Desk) -> dict[str, Any]:
    """{name: time of forward and backward over that of `beside`}; a first step of each is not counted."""
    first = growths[beside]
    rows = first.text(first.batch, seed, False)
    models = {name: Decoder(growth.shape(rows.vocabulary), seed) for name, growth in growths.items()}
    fastest: dict[str, float] = {}
    for turn in range(repeats + 1):
        desk.advance("timing", turn, repeats + 1)
        for name, model in models.items():
            begun = time.process_time()
            F.cross_entropy(model(rows.ids[:, :-1]).flatten(0, 1), rows.ids[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
            took = time.process_time() - begun
            model.zero_grad(set_to_none=True)
            if turn:
                fastest[name] = min(took, fastest.get(name, took))
    return {"seed": seed, "paces": {name: took / max(fastest[beside], 1e-9) for name, took in fastest.items()}}
