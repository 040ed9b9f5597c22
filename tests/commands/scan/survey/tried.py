"""Surveys with a trial built by hand, healthy unless a field is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.trial import Exposure, Half, HeadTrial, OddWeight, Part, Rescaled, Trial
from attnscope.core.finding import Finding
from tests.commands.compare.made import made

HALVES: tuple[Half, ...] = get_args(Half)
LOSS = (4.0, 4.5, 5.0, 4.5, 4.0, 5.0, 4.5, 4.5)  # the mean is 4.5
TWO = ("encoder", "decoder")


def parts(stack: Any = "decoder", **changed: Any) -> tuple[Part, ...]:
    """Return eight halves of four blocks. `mlp_2=Part(...)` replaces the MLP of block 2."""
    every: dict[str, Part] = {}
    for layer in range(4):
        for half in get_args(Half):
            every[f"{half}_{layer}"] = Part(stack, layer, half, 0.3, 0.8, slope=0.01)
    return tuple((every | changed).values())


def part(half: Any = "mlp", layer: Any = 2, stack: Any = "decoder", **fields: Any) -> Part:
    return Part(stack, layer, half, **{"write": 0.3, "varies": 0.8, "slope": 0.5, **fields})


def healthy(**fields: Any) -> Trial:
    given: dict[str, Any] = {
        "fingerprint": "f",
        "task": "next token",
        "counts": (63,) * len(LOSS),
        "loss": LOSS,
        "unigram": 6.5,
        "exposures": (Exposure("decoder", 1e-7, 2e-6),),
        "order": 0.7,
        "order_rounding": 2e-6,
        "parts": parts(),
    }
    return Trial(**given | fields)


def found(kind: str, trial: Trial | None, stacks: tuple[str, ...] = ("decoder",), **options: Any) -> list[Finding]:
    """Return the findings of a kind in a survey with this trial."""
    survey = replace(made(stacks=stacks), trial=trial)
    if options.pop("random", False):
        model = {**survey.provenance["model"], "weights": "random"}
        survey = replace(survey, provenance={**survey.provenance, "model": model})
    return [each for each in diagnose(survey, Thresholds(**options)) if each.kind == kind]


def only(kind: str, trial: Trial, stacks: tuple[str, ...] = ("decoder",), **options: Any) -> Finding:
    (finding,) = found(kind, trial, stacks, **options)
    return finding


def full_trial(blocks: int = 2, heads: int = 2) -> Trial:
    """Return a healthy trial in which every field holds something."""
    tried = (Rescaled(0.5, (4.75, 4.25), 0.125),)
    halves = [
        Part("decoder", layer, half, 0.25, 0.75, 0.0625, (0.03125,) * heads if half == "attention" else (), tried)
        for layer in range(blocks)
        for half in HALVES
    ]
    return Trial(
        fingerprint="ab",
        task="next token",
        counts=(62, 63, 60, 61),
        loss=(4.5, 4.25, 4.625, 4.125),
        bytes=(250, 251, 240, 244),
        unigram=6.5,
        exposures=(Exposure("decoder", 0.0, 2.0**-19, 1),),
        order=0.75,
        order_rounding=2.0**-19,
        parts=tuple(halves),
        heads=(HeadTrial("decoder", 1, 1, 0.03125, tried),),
        tried_from=2,
        weights=(
            OddWeight("blocks.1.w", "zero", 0.25, "decoder", 1, 0.25),
            OddWeight("", "random", 1.125, "decoder", 0),
        ),
        notes=("Not tried: nothing.",),
    )
