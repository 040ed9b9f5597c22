"""The sentences and the document of a treatment: findings, held-out loss, and the time of a step."""

from __future__ import annotations

import math

from attnscope.commands.treat import prune_words
from attnscope.commands.treat.chart import figures
from attnscope.commands.treat.outcome_words import ARM_WORDS, amount_words, counts_table, how_many, subject_of, title_of
from attnscope.commands.treat.outcomes import Judgement, Outcome
from attnscope.commands.treat.record import Arm, Treatment
from attnscope.core.words import blocks, count, number, numeral
from attnscope.reports.document import Card, Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Level, Verdict
from attnscope.stats.intervals import Interval

MUCH = 0.1  # nats: perplexity grows by a tenth
SMALL_JUMP = 1e-3  # nats: a smaller change before training is rounding
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
    pruned = record.pruning is not None
    pictures = tuple(
        Figure(drawn.name, drawn.title, drawn_by("attnscope.commands.treat.chart:draw", drawn), caption=drawn.caption)
        for drawn in figures(record)
    )
    named = "Heads are named block.head and counted from 0." if pruned else settings_words(record)
    return Document(
        verdict(record),
        f"Heads that can go in {record.model}" if pruned else f"{record.remedy.title} in {record.model}",
        about=(f"{record.model} ({record.class_name}) on {corpus}", *filter(None, [named])),
        sections=prune_words.sections(record, pictures) if pruned else _of_remedy(record, pictures),
        provenance=rows(record.provenance),
    )


def _of_remedy(record: Treatment, pictures: tuple[Figure, ...]) -> tuple[Section, ...]:
    cards = [_card(outcome, record) for outcome in record.outcomes]
    moved = tuple(card for card in cards if card.label != "no effect")
    same = tuple(card for card in cards if card.label == "no effect")
    nothing = () if cards else ("No arm has a finding.",)
    return (
        Section(
            "What was done",
            background=(CONTROL if record.training is not None else UNTRAINED,),
            items=(why_words(record), *cost_words(record)),
            notes=record.notes,
        ),
        Section(
            "Findings in every arm", sentences=nothing, tables=(counts_table(record.outcomes, record),), link="Findings"
        ),
        *([Section("What changed", cards=moved, detail=True)] if moved else []),
        *([Section("No effect", cards=same, detail=True)] if same else []),
        *([Section("Charts", figures=pictures)] if pictures else []),
        Section("Held-out loss", tables=_losses(record), detail=True, link="Loss"),
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
        return prune_words.verdict(record)
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
    if record.pruning is not None:
        return prune_words.sentences(record)
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
    what = subject_of(outcome)
    where = "in the control" if record.baseline == "control" else "before"
    if was != now:
        return f"{what}: {was} {where}, {now} treated"
    old, new = (number(math.nan if side is None else side.value) for side in (base, outcome.treated))
    return f"{what}: {was} {where} and {now} treated, {old} and {new} where it is strongest"


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
    return lines


def _seconds(arm: Arm) -> str:
    """Return `0.52 s (half of them 0.5 to 0.55)`, the median and the quartiles."""
    low, high = arm.quartiles
    return f"{numeral(arm.seconds, 2)} s (half of them {numeral(low, 2)} to {numeral(high, 2)})"


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
