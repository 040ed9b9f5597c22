"""Surveys of a small made-up model on the same tokens, with a trial, and faults planted by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import Exposure, Half, Part, Trial
from tests.commands.scan.survey.sample import CARDS, sample_provenance

BLOCKS, HEADS, SEQUENCES = 4, 3, 6
Factors = Mapping[tuple[str, int], float]
"""What numbers are multiplied by: ("entropy", 2) in block 2, ("spike", 3) where the stream enters block 3."""


def made(
    factors: Factors | None = None, head: int | None = None, stacks: tuple[str, ...] = ("decoder",), **provenance: Any
) -> Survey:
    """Return a survey whose numbers are the same in every call, except for the factors (of one head, if given)."""
    changed = factors or {}
    ledger = SurveyBuilder(CARDS)
    for stack in stacks:
        random = np.random.default_rng(7)
        for layer in range(BLOCKS + 1):
            for measure, size in (("relative_residual", 0.5), ("spike", 40.0), ("token_cosine", 0.3)):
                values = size * random.uniform(0.9, 1.1, SEQUENCES) * changed.get((measure, layer), 1.0)
                ledger.observe(measure, "value", stack, "stream", layer, values)
        for layer in range(BLOCKS):
            middle = 42.0 * random.uniform(0.9, 1.1, SEQUENCES) * changed.get(("middle", layer), 1.0)
            ledger.observe("spike", "value", stack, "middle", layer, middle)
            for measure, size in (("entropy", 2.0), ("sink_mass", 0.2), ("head_overlap", 0.4)):
                values = size * random.uniform(0.9, 1.1, (SEQUENCES, HEADS))
                values[:, slice(None) if head is None else head] *= changed.get((measure, layer), 1.0)
                ledger.observe(measure, "value", stack, "self", layer, values)
    told = sample_provenance(BLOCKS, HEADS, SEQUENCES, stacks=stacks)
    return ledger.survey({**told, **provenance})


def after(block: int, factor: float = 3.0) -> dict[tuple[str, int], float]:
    """Return factors on everything that follows from a fault in the MLP of a block."""
    streams = {("spike", layer): factor for layer in range(block + 1, BLOCKS + 1)}
    later = range(block + 1, BLOCKS)
    return streams | {("middle", layer): factor for layer in later} | {("entropy", layer): 1.2 for layer in later}


def with_trial(
    survey: Survey,
    loss: tuple[float, ...] = (4.5, 4.6, 4.7, 4.4, 4.6, 4.5, 4.8, 4.6),
    writes: Mapping[tuple[int, Half], float] | None = None,
    **fields: Any,
) -> Survey:
    sizes = {(layer, half): 0.3 for layer in range(BLOCKS) for half in ("attention", "mlp")} | dict(writes or {})
    parts = tuple(Part("decoder", layer, half, size, 0.8) for (layer, half), size in sizes.items())  # type: ignore[arg-type]
    counts = (63,) * len(loss)
    given: dict[str, Any] = {"fingerprint": "f", "task": "next token", "bytes": (250,) * len(loss), **fields}
    return replace(survey, trial=Trial(counts=counts, loss=loss, parts=parts, **given))


def exposed(layer: int = 0) -> tuple[Exposure, ...]:
    return (Exposure("decoder", 0.4, 1e-5, layer),)
