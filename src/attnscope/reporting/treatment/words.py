"""What a treatment says, in plain sentences: the terminal, the page and the notebook print the same ones."""

from __future__ import annotations

import math

from attnscope.core.numerals import numeral
from attnscope.core.words import blocks, count, number
from attnscope.records.intervals import Interval
from attnscope.records.outcomes import Judgement, Outcome
from attnscope.records.paired_findings import concerned
from attnscope.records.treatment import Treatment
from attnscope.reporting.verdict import Level, Verdict

SMALL_JUMP = 1e-3  # nats: what a start that keeps the function may differ by, and more


def verdict(found: Treatment) -> Verdict:
    """What became of what the remedy is meant for, and what it cost."""
    cost = found.loss
    harmed = cost.low > 0
    if found.pruning is not None:
        out = f"{count(found.pruning.removed, 'head')} of {found.pruning.total}"
        return Verdict("info" if harmed else "calm", f"Without {out} {loss_words(found)}.")
    judgement = overall(found)
    sentence = f"{found.remedy.name} {_became(found, judgement)}; {loss_words(found)}."
    level: Level = "calm"
    if judgement == "harmed" or (harmed and judgement != "helped"):
        level = "warning"
    elif judgement != "helped" or harmed:
        level = "info"
    return Verdict(level, sentence)


def overall(found: Treatment) -> Judgement:
    """On the findings that the remedy answers; where none was made, on all."""
    answered = [one for one in found.outcomes if one.answered] or list(found.outcomes)
    judged = {one.judgement for one in answered}
    if "harmed" in judged:
        return "harmed" if "helped" not in judged else "changed"
    return "helped" if "helped" in judged else "no effect"


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
    answered = [one for one in found.outcomes if one.answered and one.judgement == judgement]
    first = next(iter(answered), None)
    against = _baseline_words(found)
    if first is None:
        return {
            "helped": f"helped beside {against}",
            "harmed": f"harmed beside {against}",
            "no effect": f"had no effect beside {against} on any finding",
            "changed": f"helped one finding and harmed another, beside {against}",
        }[judgement]
    amount = _amounts(first, found)
    return {
        "helped": f"helped: {amount}",
        "harmed": f"harmed: {amount}",
        "no effect": f"had no effect: {amount}",
        "changed": f"changed something: {amount}",
    }[judgement]


def _amounts(outcome: Outcome, found: Treatment) -> str:
    """`heads that sink went from 146 in the control to 90`."""
    base = outcome.control if found.baseline == "control" else outcome.before
    was = 0 if base is None else concerned(base)
    now = 0 if outcome.treated is None else concerned(outcome.treated)
    what = _subject(outcome)
    where = "in the control" if found.baseline == "control" else "before"
    if was != now:
        return f"{what}: {was} {where}, {now} treated"
    return f"{what}: {was} {where} and {now} treated ({_values(base, outcome)})"


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
    told = [f"{'none' if one is None else concerned(one)} {where}" for where, one in arms]
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
            told.append(f"A step of training took {numeral(found.slowdown, 3)} times as long as in the control.")
    if found.pruning is not None:
        told += pruning_words(found)
    return told


def pruning_words(found: Treatment) -> list[str]:
    pruning = found.pruning
    assert pruning is not None
    told = [
        f"{count(pruning.removed, 'head')} of {pruning.total} taken out, ordered {_ordered(pruning.by)} "
        f"({pruning.asked}; values over {count(pruning.prompts, 'prompt')})."
    ]
    place = min(range(len(pruning.counts)), key=lambda one: abs(pruning.counts[one] - pruning.removed))
    compared = ", ".join(f"{numeral(order.losses[place], 4)} {_ordered(order.name)}" for order in pruning.orders)
    return [*told, f"Loss without {count(pruning.counts[place], 'head')}: {compared}."]


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
