"""Misscaled write: the model would predict better if a half of a block, or a head, wrote less or more than it does.

In a trained model no part can be improved by a factor: the loss is at a minimum with respect to all weights, and so
with respect to a factor on what a part writes. A part that was changed after training, by a fault in its weights or in
what it reads, is not at its minimum. The part was chosen by its slope on some windows, and rescaled on others if there
are enough. Random weights are at no minimum, so they have no such finding.

Several parts and factors are tried. Each has an interval so wide that all of them hold with 95% together (Bonferroni):
SmolLM2 on an English novel has one of eight whose own 95% interval lies below 0 by chance.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import HeadTrial, Part, Rescaled, Trial
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number, numeral, within
from attnscope.stats.intervals import LEVEL, Interval, paired_interval

FACTORS = 3  # that are tried on one part


@finding(
    order=9,
    reads=(),
    summary="The model predicts better if one half of a block, or one head, writes less or more.",
    citation="a derivative and a test on other windows; see docs/scan.md",
    severity="wrong: the model predicts better if the part writes less, more or nothing",
)
def misscaled_write(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    trial = survey.trial
    random = survey.provenance.get("model", {}).get("weights") == "random"
    if trial is None or random or not trial.loss:
        return
    better = [(part, best) for part in trial.parts if (best := _better(trial, part, thresholds)) is not None]
    if not better:
        return
    part, best = min(better, key=lambda pair: trial.cost(pair[1]))
    head = _head(trial, part, best)
    yield Finding(
        kind=misscaled_write.name,
        severity="wrong",
        stack=part.stack,
        layers=(part.layer,),
        heads=() if head is None else ((head.layer, head.head),),
        sentence=" ".join(
            (
                f"T{part.words[1:]}{within(part.stack, '', len(survey.stacks) > 1)} {_fault(best.factor)} the loss"
                f" falls by {_fall(trial, best)}.",
                *([] if head is None else [f"Without head {head.head} alone it falls by {_gain(trial, head)}."]),
                *([] if len(better) == 1 else [_others(len(better) - 1)]),
            )
        ),
        value=-trial.cost(best),
        threshold=thresholds.rescaling_gain,
        threshold_name="rescaling_gain",
        citation=misscaled_write.citation,
        advice=(
            "First scan it on text of the kind it was trained on: on other text a healthy model can have this finding."
            " Then compare the weights of this block with a checkpoint that works (`attnscope compare`): look for"
            f" {_LESS if best.factor < 1 else _MORE}, noise, lost precision, or a block in the wrong place."
        ),
        details={"block": part.layer, "half": part.half, "factor": best.factor, "slope": part.slope},
    )


_LESS = "rows that are too large, a scale that is applied twice"
_MORE = "rows that are zero or too small, a scale that is missing"


def _fault(factor: float) -> str:
    """Return what is wrong with a part that is better with this factor."""
    if factor == 0:
        return "harms the prediction: without it"
    return f"writes too {'much' if factor < 1 else 'little'}: at {factor:g} times its size"


def _fall(trial: Trial, tried: Rescaled) -> str:
    """Return `0.2 nats per token (0.15 to 0.25), from 4.5`."""
    interval = _interval(trial, tried)
    before = trial.mean(trial.loss[trial.tried_from :][: len(trial.costs(tried))], trial.tried_from)
    span = f"{numeral(-interval.high, 2)} to {numeral(-interval.low, 2)}"
    return f"{number(-trial.cost(tried))} nats per token ({span}), from {number(before)}"


def _gain(trial: Trial, head: HeadTrial) -> str:
    return number(-trial.cost(head.rescaled[0]))


def _others(number_of: int) -> str:
    return f"Rescaling {'another part' if number_of == 1 else f'one of {number_of} other parts'} lowers it too."


def _interval(trial: Trial, tried: Rescaled) -> Interval:
    costs, tries = trial.costs(tried), sum(len(part.rescaled) for part in trial.parts)
    if trial.tried_from == 0:  # the windows that chose the parts also judge them, so every part was tried
        tries = FACTORS * len(trial.parts)
    return paired_interval((0.0,) * len(costs), costs, level=1 - (1 - LEVEL) / max(1, tries))


def _better(trial: Trial, part: Part, thresholds: Thresholds) -> Rescaled | None:
    """Return the best factor if it lowers the loss by the threshold or more, and by more than chance."""
    best = trial.best(part)
    if not abs(part.slope) >= thresholds.write_slope:  # NaN: blocks that share weights have no slope
        return None
    if best is None or not -trial.cost(best) >= thresholds.rescaling_gain or len(trial.costs(best)) < 2:
        return None
    return best if _interval(trial, best).high < 0 else None


def _head(trial: Trial, part: Part, best: Rescaled) -> HeadTrial | None:
    """Return the head of this part without which the loss falls by more than half as much."""
    own = [h for h in trial.heads if (h.stack, h.layer) == (part.stack, part.layer) and part.half == "attention"]
    return next((h for h in own if h.rescaled and trial.cost(h.rescaled[0]) < trial.cost(best) / 2), None)
