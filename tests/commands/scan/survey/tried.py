"""Surveys with a trial built by hand, healthy unless a field is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.trial import Exposure, Half, Part, Trial
from attnscope.core.finding import Finding
from tests.commands.compare.made import made

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
