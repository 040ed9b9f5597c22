"""What a treatment says, in plain sentences: the terminal, the page and the notebook print the same ones."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.commands.compare.paired_findings import concerned
from attnscope.commands.treat.outcomes import Judgement, Outcome
from attnscope.commands.treat.record import Arm, Treatment
from attnscope.core.finding import Finding
from attnscope.core.words import blocks, clean, count, number, numeral
from attnscope.reports.terminal import lines_under, opening
from attnscope.reports.words import Level, Verdict
from attnscope.stats.intervals import Interval

MUCH = 0.1  # nats: perplexity goes up by a tenth, whatever findings say
SMALL_JUMP = 1e-3  # nats: what a start that keeps the function may differ by, and more


def verdict(found: Treatment) -> Verdict:
    """What became of findings, and what became of the loss: neither stands for the other."""
    cost = found.loss
    harmed = cost.low > 0
    if found.pruning is not None:
        out = f"{count(found.pruning.removed, 'head')} of {found.pruning.total}"
        return Verdict("note" if harmed else "calm", f"Without {out} {loss_words(found)}.")
    judgement = overall(found)
    sentence = f"{found.remedy.name} {_became(found, judgement)}{_and_loss(found, judgement)}."
    level: Level = "note"
    if judgement == "harmed" or (harmed and (judgement != "helped" or cost.mean > MUCH)):
        level = "warning"
    elif judgement == "helped" and not harmed:
        level = "calm"
    return Verdict(level, sentence)


def _and_loss(found: Treatment, judgement: Judgement) -> str:
    """`; held-out loss ...`, with the word between the two that fits them."""
    told, words = found.loss, loss_words(found)
    if not told.sure:
        return f"; {words}"
    good, better = judgement == "helped", told.mean < 0
    if judgement in ("helped", "harmed"):
        return f", and {words}" if good == better else f", but {words}"
    return f", but {words}" if judgement == "no effect" else f"; {words}"


def overall(found: Treatment) -> Judgement:
    """On the findings that the remedy answers; where none was made, on all."""
    judged = {one.judgement for one in _spoken_of(found)}
    if "harmed" in judged:
        return "harmed" if "helped" not in judged else "changed"
    return next((one for one in ("helped", "unknown") if one in judged), "no effect")


def _spoken_of(found: Treatment) -> list[Outcome]:
    return [one for one in found.outcomes if one.answered] or list(found.outcomes)


def sentences(found: Treatment) -> tuple[str, ...]:
    """The verdict, why this remedy, what it did to every finding, to the loss, and to the time."""
    told = [verdict(found).sentence, why_words(found), *(outcome_words(one, found) for one in found.outcomes)]
    return (*told, *cost_words(found))


def why_words(found: Treatment) -> str:
    chosen = f"{found.remedy.title} ({found.remedy.name}, {found.remedy.citation})"
    if found.remedy.asked:
        return f"{chosen} was asked for: {found.remedy.summary[0].lower()}{found.remedy.summary[1:]}"
    return f"{chosen} was chosen, because: {found.remedy.why}"


def _became(found: Treatment, judgement: Judgement) -> str:
    told = _spoken_of(found)
    against = _baseline_words(found)
    if not told:
        return f"has nothing to answer: neither {against} nor the treated model has a finding"
    if judgement == "changed":
        better, worse = (next(one for one in told if one.judgement == word) for word in ("helped", "harmed"))
        return f"helped ({_amounts(better, found)}) and harmed ({_amounts(worse, found)})"
    first = next((one for one in told if one.judgement == judgement), told[0])
    amount = _amounts(first, found)
    if judgement == "no effect":
        nothing = "changed no finding" if found.loss.sure else "had no effect that could be told from chance"
        return f"{nothing} ({amount})"
    if judgement == "unknown":
        return f"changed something on too little text to tell it from chance ({amount})"
    return f"{judgement} ({amount})"


def _amounts(outcome: Outcome, found: Treatment) -> str:
    """`heads that sink: 146 in the control, 90 treated`."""
    base = outcome.control if found.baseline == "control" else outcome.before
    was, now = how_many(base), how_many(outcome.treated)
    what = _subject(outcome)
    where = "in the control" if found.baseline == "control" else "before"
    if was != now:
        return f"{what}: {was} {where}, {now} treated"
    return f"{what}: {was} {where} and {now} treated, {_values(base, outcome)}"


def how_many(finding: Finding | None) -> str:
    """Heads or places; of what has neither (texts without BOS), that it is there."""
    return "none" if finding is None else str(concerned(finding) or "there")


def _values(base: object, outcome: Outcome) -> str:
    old = getattr(base, "value", math.nan)
    new = outcome.treated.value if outcome.treated is not None else math.nan
    return f"{number(old)} and {number(new)} where it is strongest"


KINDS = {
    "sink": "heads that sink",
    "sink_elsewhere": "heads that sink elsewhere",
    "uniform_heads": "heads that are almost uniform",
    "duplicate_heads": "heads with a twin",
    "entropy_collapse": "heads that are nearly one-hot",
    "massive_activation": "places with a massive activation",
    "past_float16": "places past float16",
    "collapse": "places where tokens become alike",
    "smoothing": "places where tokens point the same way",
    "identity_heads": "heads that look at their own token",
    "previous_token_heads": "heads that look at the token before",
    "missing_bos": "texts without BOS",
    "nonfinite": "places that are not numbers",
}


def title_of(outcome: Outcome) -> str:
    said = _subject(outcome)
    return said[0].upper() + said[1:]


def _subject(outcome: Outcome) -> str:
    """What is counted: `heads that sink`; of an alarm, the measure that rang it."""
    measure = str(outcome.any.details.get("measure", outcome.kind))
    return KINDS.get(outcome.kind, f"alarm of {measure.replace('_', ' ')}")


def outcome_words(outcome: Outcome, found: Treatment) -> str:
    return f"{title_of(outcome)}: {outcome.judgement}. {amount_words(outcome, found)}"


def amount_words(outcome: Outcome, found: Treatment) -> str:
    """`146 before, 144 in the control, 90 treated.`"""
    arms = [("before", outcome.before), ("in the control", outcome.control), ("treated", outcome.treated)]
    if found.baseline == "before":
        arms = [arms[0], arms[2]]
    told = [f"{how_many(one)} {where}" for where, one in arms]
    return f"{', '.join(told)}."


def loss_words(found: Treatment) -> str:
    """The price, and whether it could be chance."""
    told = found.loss
    against = _baseline_words(found)
    if not math.isfinite(told.low):
        return f"held-out loss {_signed(told.mean)} against {against}, on one text, which says nothing of chance"
    interval = f"95% interval {_signed(told.low)} to {_signed(told.high)}"
    if told.mean == 0 and told.low == told.high:
        return f"held-out loss is that of {against}"
    if not told.sure:
        return f"held-out loss cannot be told from {_of(against)} ({_signed(told.mean)}, {interval})"
    which = "higher" if told.mean > 0 else "lower"
    return f"held-out loss is {numeral(abs(told.mean), 3)} nats {which} than {_of(against)} ({interval})"


def cost_words(found: Treatment) -> list[str]:
    """Loss in all arms, the jump at the start, and time."""
    losses = ", ".join(f"{numeral(arm.loss, 4)} {_arm(name)}" for name, arm in found.arms.items())
    told = [f"Held-out loss, nats per token: {losses}."]
    if found.training is not None:
        train = found.training
        which = "all parameters" if train.parameters == "all" else "the projections of the treated blocks"
        told.append(
            f"Both were trained for {count(train.steps, 'step')} of {count(train.batch_size, 'sequence')} "
            f"({train.tokens:,} tokens, rate {numeral(train.rate)}): {which} ({train.trained:,} numbers), and of the "
            f"treated one {train.added:,} more that the remedy adds."
        )
        jump = found.start - found.arms["before"].loss
        if abs(jump) > SMALL_JUMP:
            told.append(f"Before any training the remedy changed the loss by {_signed(jump)} nats.")
        if math.isfinite(found.slowdown):
            told.append(
                f"A step of training took {_seconds(found.arms['treated'])} treated and "
                f"{_seconds(found.arms['control'])} in the control."
            )
    if found.pruning is not None:
        told += pruning_words(found)
    return told


def _seconds(arm: Arm) -> str:
    """`0.52 s (half of them 0.5 to 0.55)`: a machine that does other things too is in the spread."""
    low, high = arm.quartiles
    return f"{numeral(arm.seconds, 2)} s (half of them {numeral(low, 2)} to {numeral(high, 2)})"


def pruning_words(found: Treatment) -> list[str]:
    pruning = found.pruning
    assert pruning is not None
    told = [
        f"{count(pruning.removed, 'head')} of {pruning.total} taken out, ordered {_ordered(pruning.by)} "
        f"({pruning.asked}; values over {count(pruning.prompts, 'prompt')})."
    ]
    place = min(range(len(pruning.counts)), key=lambda one: abs(pruning.counts[one] - pruning.removed))
    compared = ", ".join(f"{numeral(order.losses[place], 4)} {_ordered(order.name)}" for order in pruning.orders)
    left = (
        "What is counted of findings, before and after, is the heads that are left; their sentences are of all heads."
    )
    return [*told, f"Loss without {count(pruning.counts[place], 'head')}: {compared}.", left]


def _ordered(name: str) -> str:
    return {
        "value": "by value",
        "size": "by size of value",
        "contribution": "by contribution",
        "random": "at random",
    }.get(name, name)


def settings_words(found: Treatment) -> str:
    """`blocks 0-5; threshold 100`, or nothing."""
    parts = [blocks(found.remedy.layers)] if found.remedy.layers else []
    parts += [f"{name} {value}" for name, value in found.remedy.settings.items()]
    return "; ".join(parts)


def _baseline_words(found: Treatment) -> str:
    return "the control" if found.baseline == "control" else "the model before"


def _of(against: str) -> str:
    return "the control's" if against == "the control" else "that before"


def _arm(name: str) -> str:
    return {"before": "before", "control": "in the control", "treated": "treated"}[name]


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{numeral(abs(value), 3)}"


def interval_words(told: Interval) -> str:
    if not math.isfinite(told.low):
        return _signed(told.mean)
    return f"{_signed(told.mean)} ({_signed(told.low)} to {_signed(told.high)})"


# A treatment in a terminal: the verdict, every finding in all arms, and what it cost.

MOST = 8  # findings on a screen


def show(found: Treatment, *, verbose: bool = False) -> RenderableType:
    """What a console prints; `verbose` adds every finding in words and the losses of all arms."""
    corpus = found.provenance.get("corpus", {})
    about = f"{found.model} ({found.class_name}) on {corpus.get('name', 'ready batches')}"
    where = settings_words(found)
    parts: list[RenderableType] = [
        *opening(verdict(found), about, *([where] if where else []), ""),
        Text(f"· {clean(why_words(found))}"),
        *(Text(f"· {clean(told)}") for told in cost_words(found)),
        *lines_under("What became of findings", *findings_table(found, None if verbose else MOST)),
        *(Text(clean(note), style="dim") for note in found.notes),
    ]
    return Group(*parts, *(_losses(found) if verbose else ()))


def findings_table(found: Treatment, most: int | None = None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(heading, lines): how many heads or places a finding concerns in every arm, and the verdict on it."""
    arms = list(found.arms)
    lines = []
    for one in found.outcomes[:most]:
        counts = [getattr(one, arm) for arm in arms]
        lines.append((title_of(one), *(how_many(f) for f in counts), one.judgement))
    return ("", *arms, "verdict"), lines


def _losses(found: Treatment) -> list[RenderableType]:
    lines = [(name, numeral(arm.loss, 4)) for name, arm in found.arms.items()]
    compared = [("treated less " + found.baseline, interval_words(found.loss))]
    if found.baseline == "control":
        compared.append(("control less before", interval_words(found.loss_between("before", "control"))))
    return [
        *lines_under("Held-out loss", ("arm", "nats per token"), lines),
        *lines_under("Differences, with 95% intervals", ("", "nats per token"), compared),
    ]
