"""The words of a treatment: what the remedy did to findings, to the held-out loss and to the time of a step."""

from __future__ import annotations

import math

from attnscope.commands.compare.paired_findings import concerned
from attnscope.commands.treat.chart import figures
from attnscope.commands.treat.outcomes import Judgement, Outcome
from attnscope.commands.treat.record import Arm, Treatment
from attnscope.core.finding import Finding
from attnscope.core.words import blocks, count, number, numeral
from attnscope.reports.document import Card, Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Level, Verdict
from attnscope.stats.intervals import Interval

MUCH = 0.1  # nats: perplexity goes up by a tenth
SMALL_JUMP = 1e-3  # nats: rounding of a start that keeps the function
ARM_WORDS = {"before": "before", "control": "in the control", "treated": "treated"}
ORDERS = {"value": "by value", "size": "by size of value", "contribution": "by contribution", "random": "at random"}
LEVELS: dict[Judgement, Level] = {"helped": "calm", "harmed": "warning"}  # others are notes
CONTROL = (
    "The control is the same model, trained without the remedy on the same batches in the same order, with the same "
    "rate and seed. Control and treated differ by the remedy; before and control differ by training. All numbers are "
    "of text that neither has seen."
)
UNTRAINED = "Nothing was trained: the treated model is compared with the model before, on text not used to choose it."
LOSS = (
    "Nats per token, the mean over {} that were not trained on. Intervals are of paired differences; they hold for "
    "other text of this kind, and not for another training run."
)


def document(found: Treatment) -> Document:
    corpus = found.provenance.get("corpus", {}).get("name", "ready batches")
    cards = [_card(outcome, found) for outcome in found.outcomes]
    moved = tuple(card for card in cards if card.label != "no effect")
    same = tuple(card for card in cards if card.label == "no effect")
    nothing = () if cards else ("No arm has a finding.",)
    pictures = tuple(
        Figure(one.name, one.title, drawn_by("attnscope.commands.treat.chart:draw", one), caption=one.caption)
        for one in figures(found)
    )
    counts = [
        (title_of(outcome), *(how_many(getattr(outcome, arm)) for arm in found.arms), outcome.judgement)
        for outcome in found.outcomes
    ]
    table = Table(("", *found.arms, "verdict"), tuple(counts), align="lrrrl"[: len(found.arms) + 1] + "l", brief=8)
    return Document(
        verdict(found),
        f"{found.remedy.title} in {found.model}",
        about=(f"{found.model} ({found.class_name}) on {corpus}", *filter(None, [settings_words(found)])),
        sections=(
            Section(
                "What was done",
                background=(CONTROL if found.training is not None else UNTRAINED,),
                items=(why_words(found), *cost_words(found)),
                notes=found.notes,
            ),
            Section("Findings in every arm", sentences=nothing, tables=(table,), link="Findings"),
            *([Section("What changed", cards=moved, detail=True)] if moved else []),
            *([Section("No effect", cards=same, detail=True)] if same else []),
            *([Section("Charts", figures=pictures)] if pictures else []),
            Section("Held-out loss", tables=_losses(found), detail=True, link="Loss"),
        ),
        provenance=rows(found.provenance),
    )


def _card(outcome: Outcome, found: Treatment) -> Card:
    sides = [(arm, getattr(outcome, arm)) for arm in found.arms]
    facts = tuple((arm, ("No such finding." if side is None else side.sentence,)) for arm, side in sides)
    about = "the remedy is meant for it" if outcome.answered else ""
    sentence = f"{title_of(outcome)}: {amount_words(outcome, found)}"
    return Card(LEVELS.get(outcome.judgement, "note"), outcome.judgement, sentence, facts, about)


def _losses(found: Treatment) -> tuple[Table, ...]:
    losses = tuple((name, numeral(arm.loss, 4)) for name, arm in found.arms.items())
    pairs = [(found.baseline, "treated")]
    if found.baseline == "control":
        pairs += [("before", "control"), ("before", "treated")]
    apart = tuple(
        (f"{second} less {first}", interval_words(found.loss_between(first, second))) for first, second in pairs
    )
    note = LOSS.format(count(len(found.arms["before"].losses), "sequence"))
    heading = ("nats per token",)
    return (
        Table(("arm", *heading), losses, note=note),
        Table(("", *heading), apart, caption="Differences, with 95% intervals"),
    )


def verdict(found: Treatment) -> Verdict:
    """Say what became of findings and of the loss."""
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
    """Return `; held-out loss ...`, joined by "and" or "but" if that fits."""
    apart, words = found.loss, loss_words(found)
    if not apart.sure:
        return f"; {words}"
    good, better = judgement == "helped", apart.mean < 0
    if judgement in ("helped", "harmed"):
        return f", and {words}" if good == better else f", but {words}"
    return f", but {words}" if judgement == "no effect" else f"; {words}"


def overall(found: Treatment) -> Judgement:
    """Judge the findings that the remedy answers, or all findings if it answers none of them."""
    judged = {outcome.judgement for outcome in _relevant(found)}
    if "harmed" in judged:
        return "harmed" if "helped" not in judged else "changed"
    return next((word for word in ("helped", "unknown") if word in judged), "no effect")


def _relevant(found: Treatment) -> list[Outcome]:
    return [outcome for outcome in found.outcomes if outcome.answered] or list(found.outcomes)


def sentences(found: Treatment) -> tuple[str, ...]:
    """Return the verdict, why this remedy, and what it did to every finding, to the loss and to the time."""
    outcomes = [f"{title_of(one)}: {one.judgement}. {amount_words(one, found)}" for one in found.outcomes]
    return (verdict(found).sentence, why_words(found), *outcomes, *cost_words(found))


def why_words(found: Treatment) -> str:
    chosen = f"{found.remedy.title} ({found.remedy.name}, {found.remedy.citation})"
    if found.remedy.asked:
        return f"{chosen} was asked for: {found.remedy.summary[0].lower()}{found.remedy.summary[1:]}"
    return f"{chosen} was chosen, because: {found.remedy.why}"


def _became(found: Treatment, judgement: Judgement) -> str:
    relevant = _relevant(found)
    if not relevant:
        return f"has nothing to answer: neither {_baseline_words(found)} nor the treated model has a finding"
    if judgement == "changed":
        better, worse = (next(one for one in relevant if one.judgement == word) for word in ("helped", "harmed"))
        return f"helped ({_amounts(better, found)}) and harmed ({_amounts(worse, found)})"
    first = next((one for one in relevant if one.judgement == judgement), relevant[0])
    amount = _amounts(first, found)
    if judgement == "no effect":
        nothing = "changed no finding" if found.loss.sure else "had no effect that could be told from chance"
        return f"{nothing} ({amount})"
    if judgement == "unknown":
        return f"changed something on too little text to tell it from chance ({amount})"
    return f"{judgement} ({amount})"


def _amounts(outcome: Outcome, found: Treatment) -> str:
    """Return `heads that sink: 146 in the control, 90 treated`."""
    base = outcome.control if found.baseline == "control" else outcome.before
    was, now = how_many(base), how_many(outcome.treated)
    what = _subject(outcome)
    where = "in the control" if found.baseline == "control" else "before"
    if was != now:
        return f"{what}: {was} {where}, {now} treated"
    old, new = (number(math.nan if side is None else side.value) for side in (base, outcome.treated))
    return f"{what}: {was} {where} and {now} treated, {old} and {new} where it is strongest"


def how_many(finding: Finding | None) -> str:
    """Return the number of heads or places, or "there" for a finding that counts neither."""
    return "none" if finding is None else str(concerned(finding) or "there")


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
    subject = _subject(outcome)
    return subject[0].upper() + subject[1:]


def _subject(outcome: Outcome) -> str:
    """Return what is counted, such as `heads that sink`; for an alarm, its measure."""
    measure = str(outcome.any.details.get("measure", outcome.kind))
    return KINDS.get(outcome.kind, f"alarm of {measure.replace('_', ' ')}")


def amount_words(outcome: Outcome, found: Treatment) -> str:
    """Return `146 before, 144 in the control, 90 treated.`"""
    return f"{', '.join(f'{how_many(getattr(outcome, arm))} {ARM_WORDS[arm]}' for arm in found.arms)}."


def loss_words(found: Treatment) -> str:
    """Return the change of the held-out loss, and whether it could be chance."""
    apart = found.loss
    against = _baseline_words(found)
    if not math.isfinite(apart.low):
        return f"held-out loss {_signed(apart.mean)} against {against}, on one text, which does not show what is chance"
    interval = f"95% interval {_signed(apart.low)} to {_signed(apart.high)}"
    if apart.mean == 0 and apart.low == apart.high:
        return f"held-out loss is that of {against}"
    whose = "the control's" if found.baseline == "control" else "that before"
    if not apart.sure:
        return f"held-out loss cannot be told from {whose} ({_signed(apart.mean)}, {interval})"
    which = "higher" if apart.mean > 0 else "lower"
    return f"held-out loss is {numeral(abs(apart.mean), 3)} nats {which} than {whose} ({interval})"


def cost_words(found: Treatment) -> list[str]:
    """Return the loss in all arms, the jump at the start, and the time of a step."""
    losses = ", ".join(f"{numeral(arm.loss, 4)} {ARM_WORDS[name]}" for name, arm in found.arms.items())
    lines = [f"Held-out loss, nats per token: {losses}."]
    if found.training is not None:
        train = found.training
        which = "all parameters" if train.parameters == "all" else "the projections of the treated blocks"
        lines.append(
            f"Both were trained for {count(train.steps, 'step')} of {count(train.batch_size, 'sequence')} "
            f"({train.tokens:,} tokens, rate {numeral(train.rate)}): {which} ({train.trained:,} numbers), and of the "
            f"treated one {train.added:,} more that the remedy adds."
        )
        jump = found.start - found.arms["before"].loss
        if abs(jump) > SMALL_JUMP:
            lines.append(f"Before any training the remedy changed the loss by {_signed(jump)} nats.")
        if math.isfinite(found.slowdown):
            lines.append(
                f"A step of training took {_seconds(found.arms['treated'])} treated and "
                f"{_seconds(found.arms['control'])} in the control."
            )
    if found.pruning is not None:
        lines += pruning_words(found)
    return lines


def _seconds(arm: Arm) -> str:
    """Return `0.52 s (half of them 0.5 to 0.55)`: the spread shows how busy the machine was."""
    low, high = arm.quartiles
    return f"{numeral(arm.seconds, 2)} s (half of them {numeral(low, 2)} to {numeral(high, 2)})"


def pruning_words(found: Treatment) -> list[str]:
    pruning = found.pruning
    assert pruning is not None
    place = min(range(len(pruning.counts)), key=lambda k: abs(pruning.counts[k] - pruning.removed))
    orders = ((numeral(order.losses[place], 4), ORDERS.get(order.name, order.name)) for order in pruning.orders)
    return [
        f"{count(pruning.removed, 'head')} of {pruning.total} taken out, ordered {ORDERS.get(pruning.by, pruning.by)} "
        f"({pruning.asked}; values over {count(pruning.prompts, 'prompt')}).",
        f"Loss without {count(pruning.counts[place], 'head')}: {', '.join(f'{loss} {how}' for loss, how in orders)}.",
        "Counts of findings, before and after, are of the heads that are left; their sentences are of all heads.",
    ]


def settings_words(found: Treatment) -> str:
    """Return `blocks 0-5; threshold 100`, or ""."""
    parts = [blocks(found.remedy.layers)] if found.remedy.layers else []
    parts += [f"{name} {value}" for name, value in found.remedy.settings.items()]
    return "; ".join(parts)


def _baseline_words(found: Treatment) -> str:
    return "the control" if found.baseline == "control" else "the model before"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{numeral(abs(value), 3)}"


def interval_words(apart: Interval) -> str:
    if not math.isfinite(apart.low):
        return _signed(apart.mean)
    return f"{_signed(apart.mean)} ({_signed(apart.low)} to {_signed(apart.high)})"
