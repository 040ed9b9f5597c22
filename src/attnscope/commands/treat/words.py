"""The sentences and the document of a treatment: findings, held-out loss, and the time of a step."""

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

MUCH = 0.1  # nats: perplexity grows by a tenth
SMALL_JUMP = 1e-3  # nats: a smaller change before training is rounding
ARM_WORDS = {"before": "before", "control": "in the control", "treated": "treated"}
ORDERS = {"value": "by value", "size": "by size of value", "contribution": "by contribution", "random": "at random"}
LEVELS: dict[Judgement, Level] = {"helped": "calm", "harmed": "warning"}  # others are notes
CONTROL = (
    "The control is the same model, trained without the remedy on the same batches in the same order, with the same "
    "rate and seed. Control and treated only differ by the remedy; before and control only differ by training. All "
    "numbers are of text that no arm was trained on."
)
UNTRAINED = "Nothing was trained: treated and untreated model are compared on text that did not decide any setting."
LOSS = (
    "Nats per token, the mean over {} that no arm was trained on. Intervals are of paired differences. They cover the "
    "choice of text, but not another training run."
)


def document(record: Treatment) -> Document:
    corpus = record.provenance.get("corpus", {}).get("name", "ready batches")
    cards = [_card(outcome, record) for outcome in record.outcomes]
    moved = tuple(card for card in cards if card.label != "no effect")
    same = tuple(card for card in cards if card.label == "no effect")
    nothing = () if cards else ("No arm has a finding.",)
    pictures = tuple(
        Figure(drawn.name, drawn.title, drawn_by("attnscope.commands.treat.chart:draw", drawn), caption=drawn.caption)
        for drawn in figures(record)
    )
    counts = [
        (title_of(outcome), *(how_many(getattr(outcome, arm)) for arm in record.arms), outcome.judgement)
        for outcome in record.outcomes
    ]
    table = Table(("", *record.arms, "verdict"), tuple(counts), align="lrrrl"[: len(record.arms) + 1] + "l", brief=8)
    return Document(
        verdict(record),
        f"{record.remedy.title} in {record.model}",
        about=(f"{record.model} ({record.class_name}) on {corpus}", *filter(None, [settings_words(record)])),
        sections=(
            Section(
                "What was done",
                background=(CONTROL if record.training is not None else UNTRAINED,),
                items=(why_words(record), *cost_words(record)),
                notes=record.notes,
            ),
            Section("Findings in every arm", sentences=nothing, tables=(table,), link="Findings"),
            *([Section("What changed", cards=moved, detail=True)] if moved else []),
            *([Section("No effect", cards=same, detail=True)] if same else []),
            *([Section("Charts", figures=pictures)] if pictures else []),
            Section("Held-out loss", tables=_losses(record), detail=True, link="Loss"),
        ),
        provenance=rows(record.provenance),
    )


def _card(outcome: Outcome, record: Treatment) -> Card:
    sides = [(arm, getattr(outcome, arm)) for arm in record.arms]
    facts = tuple((arm, ("No such finding." if side is None else side.sentence,)) for arm, side in sides)
    about = "the remedy is meant for it" if outcome.answered else ""
    sentence = f"{title_of(outcome)}: {amount_words(outcome, record)}"
    return Card(LEVELS.get(outcome.judgement, "note"), outcome.judgement, sentence, facts, about)


def _losses(record: Treatment) -> tuple[Table, ...]:
    losses = tuple((name, numeral(arm.loss, 4)) for name, arm in record.arms.items())
    pairs = [(record.baseline, "treated")]
    if record.baseline == "control":
        pairs += [("before", "control"), ("before", "treated")]
    apart = tuple(
        (f"{second} less {first}", interval_words(record.loss_between(first, second))) for first, second in pairs
    )
    note = LOSS.format(count(len(record.arms["before"].losses), "sequence"))
    heading = ("nats per token",)
    return (
        Table(("arm", *heading), losses, note=note),
        Table(("", *heading), apart, caption="Differences, with 95% intervals"),
    )


def verdict(record: Treatment) -> Verdict:
    """Say what the remedy did to findings and to the loss."""
    cost = record.loss
    harmed = cost.low > 0
    if record.pruning is not None:
        out = f"{count(record.pruning.removed, 'head')} of {record.pruning.total}"
        return Verdict("note" if harmed else "calm", f"Without {out} {loss_words(record)}.")
    judgement = overall(record)
    sentence = f"{record.remedy.name} {_became(record, judgement)}{_and_loss(record, judgement)}."
    level: Level = "note"
    if judgement == "harmed" or (harmed and (judgement != "helped" or cost.mean > MUCH)):
        level = "warning"
    elif judgement == "helped" and not harmed:
        level = "calm"
    return Verdict(level, sentence)


def _and_loss(record: Treatment, judgement: Judgement) -> str:
    """Return the words on the loss, joined by "and" if it agrees with the findings, by "but" if it contradicts them."""
    apart, words = record.loss, loss_words(record)
    if not apart.sure:
        return f"; {words}"
    good, better = judgement == "helped", apart.mean < 0
    if judgement in ("helped", "harmed"):
        return f", and {words}" if good == better else f", but {words}"
    return f", but {words}" if judgement == "no effect" else f"; {words}"


def overall(record: Treatment) -> Judgement:
    """Judge the findings that the remedy is meant for, or all findings if it is meant for none of them."""
    judged = {outcome.judgement for outcome in _relevant(record)}
    if "harmed" in judged:
        return "harmed" if "helped" not in judged else "changed"
    return next((word for word in ("helped", "unknown") if word in judged), "no effect")


def _relevant(record: Treatment) -> list[Outcome]:
    return [outcome for outcome in record.outcomes if outcome.answered] or list(record.outcomes)


def sentences(record: Treatment) -> tuple[str, ...]:
    """Return the verdict, the reason for the remedy, and its effect on every finding, the loss and the time."""
    outcomes = [f"{title_of(one)}: {one.judgement}. {amount_words(one, record)}" for one in record.outcomes]
    return (verdict(record).sentence, why_words(record), *outcomes, *cost_words(record))


def why_words(record: Treatment) -> str:
    chosen = f"{record.remedy.title} ({record.remedy.name}, {record.remedy.citation})"
    if record.remedy.asked:
        return f"{chosen} was asked for: {record.remedy.summary[0].lower()}{record.remedy.summary[1:]}"
    return f"{chosen} was chosen, because: {record.remedy.why}"


def _became(record: Treatment, judgement: Judgement) -> str:
    relevant = _relevant(record)
    if not relevant:
        return f"cannot be judged by findings: neither {_baseline_words(record)} nor the treated model has one"
    if judgement == "changed":
        better, worse = (next(one for one in relevant if one.judgement == word) for word in ("helped", "harmed"))
        return f"helped ({_amounts(better, record)}) and harmed ({_amounts(worse, record)})"
    first = next((one for one in relevant if one.judgement == judgement), relevant[0])
    amount = _amounts(first, record)
    if judgement == "no effect":
        nothing = "changed no finding" if record.loss.sure else "had no effect beyond chance"
        return f"{nothing} ({amount})"
    if judgement == "unknown":
        return f"was measured on too little text to tell a change from chance ({amount})"
    return f"{judgement} ({amount})"


def _amounts(outcome: Outcome, record: Treatment) -> str:
    """Return `heads that sink: 146 in the control, 90 treated`."""
    base = outcome.control if record.baseline == "control" else outcome.before
    was, now = how_many(base), how_many(outcome.treated)
    what = _subject(outcome)
    where = "in the control" if record.baseline == "control" else "before"
    if was != now:
        return f"{what}: {was} {where}, {now} treated"
    old, new = (number(math.nan if side is None else side.value) for side in (base, outcome.treated))
    return f"{what}: {was} {where} and {now} treated, {old} and {new} where it is strongest"


def how_many(finding: Finding | None) -> str:
    """Return the number of heads or places of a finding, "there" if it counts neither, or "none" without one."""
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


def amount_words(outcome: Outcome, record: Treatment) -> str:
    """Return `146 before, 144 in the control, 90 treated.`"""
    return f"{', '.join(f'{how_many(getattr(outcome, arm))} {ARM_WORDS[arm]}' for arm in record.arms)}."


def loss_words(record: Treatment) -> str:
    """Return the change of the held-out loss, and whether it could be chance."""
    apart = record.loss
    against = _baseline_words(record)
    if not math.isfinite(apart.low):
        return f"held-out loss {_signed(apart.mean)} against {against}, on a single text, so it may be chance"
    interval = f"95% interval {_signed(apart.low)} to {_signed(apart.high)}"
    if apart.mean == 0 and apart.low == apart.high:
        return f"held-out loss is that of {against}"
    whose = "the control's" if record.baseline == "control" else "that before"
    if not apart.sure:
        return f"held-out loss cannot be told from {whose} ({_signed(apart.mean)}, {interval})"
    which = "higher" if apart.mean > 0 else "lower"
    return f"held-out loss is {numeral(abs(apart.mean), 3)} nats {which} than {whose} ({interval})"


def cost_words(record: Treatment) -> list[str]:
    """Return the loss in all arms, the jump at the start, and the time of a step."""
    losses = ", ".join(f"{numeral(arm.loss, 4)} {ARM_WORDS[name]}" for name, arm in record.arms.items())
    lines = [f"Held-out loss, nats per token: {losses}."]
    if record.training is not None:
        train = record.training
        which = "all parameters" if train.parameters == "all" else "the projections of the treated blocks"
        lines.append(
            f"Both arms were trained for {count(train.steps, 'step')} of {count(train.batch_size, 'sequence')} "
            f"({train.tokens:,} tokens, rate {numeral(train.rate)}): {which} ({train.trained:,} numbers), and in the "
            f"treated arm {train.added:,} more that the remedy adds."
        )
        jump = record.start - record.arms["before"].loss
        if abs(jump) > SMALL_JUMP:
            lines.append(f"Before any training the remedy changed the loss by {_signed(jump)} nats.")
        if math.isfinite(record.slowdown):
            lines.append(
                f"A step of training took {_seconds(record.arms['treated'])} treated and "
                f"{_seconds(record.arms['control'])} in the control."
            )
    if record.pruning is not None:
        lines += pruning_words(record)
    return lines


def _seconds(arm: Arm) -> str:
    """Return `0.52 s (half of them 0.5 to 0.55)`, the median and the quartiles."""
    low, high = arm.quartiles
    return f"{numeral(arm.seconds, 2)} s (half of them {numeral(low, 2)} to {numeral(high, 2)})"


def pruning_words(record: Treatment) -> list[str]:
    pruning = record.pruning
    assert pruning is not None
    place = min(range(len(pruning.counts)), key=lambda k: abs(pruning.counts[k] - pruning.removed))
    orders = ((numeral(order.losses[place], 4), ORDERS.get(order.name, order.name)) for order in pruning.orders)
    return [
        f"{count(pruning.removed, 'head')} of {pruning.total} removed, ordered {ORDERS.get(pruning.by, pruning.by)} "
        f"({pruning.asked}; values over {count(pruning.prompts, 'prompt')}).",
        f"Loss without {count(pruning.counts[place], 'head')}: {', '.join(f'{loss} {how}' for loss, how in orders)}.",
        "Counts of findings, before and after, only include the heads that are left; sentences of findings include "
        "all heads.",
    ]


def settings_words(record: Treatment) -> str:
    """Return `blocks 0-5; threshold 100`, or ""."""
    parts = [blocks(record.remedy.layers)] if record.remedy.layers else []
    parts += [f"{name} {value}" for name, value in record.remedy.settings.items()]
    return "; ".join(parts)


def _baseline_words(record: Treatment) -> str:
    return "the control" if record.baseline == "control" else "the model before"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{numeral(abs(value), 3)}"


def interval_words(apart: Interval) -> str:
    if not math.isfinite(apart.low):
        return _signed(apart.mean)
    return f"{_signed(apart.mean)} ({_signed(apart.low)} to {_signed(apart.high)})"
