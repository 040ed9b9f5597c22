"""Misscaled write: the model would predict better if a half of a block, or a head, wrote less or more than it does.

In a trained model no part can be improved by a factor: the loss is at a minimum with respect to all weights, and so
with respect to a factor on what a part writes. A part that was changed after training, by a fault in its weights or in
what it reads, is not at its minimum. The part was chosen by its slope on some windows, and rescaled on others.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import HeadTrial, Part, Rescaled, Trial
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number, numeral, within
from attnscope.stats.intervals import paired_interval


@finding(
    order=9,
    reads=(),
    summary="The model predicts better if one half of a block, or one head, writes less or more.",
    citation="a derivative and a test on other windows; see docs/scan.md",
)
def misscaled_write(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    trial = survey.trial
    if trial is None or not trial.loss:
        return
    better = [(part, best) for part in trial.parts if (best := _better(trial, part, thresholds)) is not None]
    if not better:
        return
    part, best = min(better, key=lambda pair: trial.cost(pair[1]))
    interval = paired_interval(trial.loss[trial.tried_from :][: len(best.loss)], best.loss)
    head = _head(trial, part, thresholds)
    amount = "without it" if best.factor == 0 else f"if it writes {best.factor:g} times as much"
    others = len(better) - 1
    more = "" if not others else f" {others} other part{'s' if others > 1 else ''} would also be better rescaled."
    which = "" if head is None else f" Head {head.head} alone accounts for {number(-trial.cost(head.rescaled[0]))}."
    yield Finding(
        kind=misscaled_write.name,
        severity="wrong",
        stack=part.stack,
        layers=(part.layer,),
        heads=() if head is None else ((head.layer, head.head),),
        sentence=(
            f"{part.words[:1].upper()}{part.words[1:]}{within(part.stack, '', len(survey.stacks) > 1)} harms the"
            f" prediction: {amount} the loss falls by {number(-trial.cost(best))} nats per token"
            f" ({numeral(-interval.high, 2)} to {numeral(-interval.low, 2)}), from"
            f" {number(trial.mean(trial.loss[trial.tried_from :][: len(best.loss)], trial.tried_from))}.{which}{more}"
        ),
        value=-trial.cost(best),
        threshold=thresholds.rescaling_gain,
        threshold_name="rescaling_gain",
        citation=misscaled_write.citation,
        advice=(
            "First scan it on text of the kind it was trained on: on other text a healthy model can have this finding."
            " Then compare the weights of this block with a checkpoint that works (`attnscope compare`): rows that are"
            " too large, a wrong scale, noise, lost precision, or a block in the wrong place."
        ),
        details={"block": part.layer, "half": part.half, "factor": best.factor, "slope": part.slope},
    )


def _better(trial: Trial, part: Part, thresholds: Thresholds) -> Rescaled | None:
    """Return the best factor if it lowers the loss by more than the threshold and by more than chance."""
    best = trial.best(part)
    if best is None or abs(part.slope) < thresholds.write_slope or len(best.loss) < 2:
        return None
    if -trial.cost(best) < thresholds.rescaling_gain:
        return None
    interval = paired_interval(trial.loss[trial.tried_from :][: len(best.loss)], best.loss)
    return best if interval.high < 0 else None


def _head(trial: Trial, part: Part, thresholds: Thresholds) -> HeadTrial | None:
    """Return the head of this part without which the loss falls by at least half as much."""
    own = [h for h in trial.heads if (h.stack, h.layer) == (part.stack, part.layer) and part.half == "attention"]
    best = trial.best(part)
    for head in own:
        if head.rescaled and best is not None and trial.cost(head.rescaled[0]) < trial.cost(best) / 2:
            return head
    return None
