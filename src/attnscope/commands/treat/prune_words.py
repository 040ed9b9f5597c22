"""The sentences and the document of pruning: which heads can go, what that costs, and why the others stay."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnscope.commands.treat.outcome_words import counts_table
from attnscope.commands.treat.outcomes import Outcome
from attnscope.commands.treat.pruning_record import Cost, HeadCost, Pruning
from attnscope.commands.treat.record import Treatment
from attnscope.core.words import count, numeral
from attnscope.reports.document import Figure, Section, Table
from attnscope.reports.words import Verdict

NAMED = 8  # heads that a sentence names; of a longer list the first half
MOST_TIMES = 16  # a request for more than so many times the text that was given helps nobody
ORDERS = {
    "effect": "by effect",
    "value": "by value",
    "size": "by size of value",
    "contribution": "by contribution",
    "random": "at random",
}
CHOSEN = "Heads are put in order on text that is not held out."
CHECKED = (
    "Three texts do not overlap. On the first, heads are put in order and a number of them is chosen. On the second "
    "that number is lowered until the mean rise plus twice the half-width of its interval is within the budget. The "
    "third is held out."
)
JUDGED = (
    "The held-out text decides nothing. Costs are measured on it unless a sentence says otherwise. A head that is "
    "taken out writes nothing (zero, not its mean), and everything after it is computed again."
)
COSTS = (
    "Measured on {} of the choosing text, in nats per token. Alone: the head is taken out of the whole model. Beside "
    "the others: it is taken out too when the other heads that go are out, with its 95% interval."
)


def verdict(record: Treatment) -> Verdict:
    """Name the heads that can go and what that costs on held-out text, or say that the budget is not met."""
    pruning, rise = _pruning(record), record.loss
    limit = pruning.limit
    budget = f"The budget of {numeral(limit)} nats per token is not met"
    if not record.removed:
        return Verdict("warning", f"No head is shown to be safe to remove. {budget}{_cheapest(record)}.")
    cost = f"held-out loss {signed(rise.mean)} ({signed(rise.low)} to {signed(rise.high)})"
    if not math.isfinite(rise.high):
        cost = f"held-out loss {signed(rise.mean)} on a single text, so it may be chance"
    named = names(record.removed)
    many = len(record.removed) > NAMED
    if rise.high <= limit:
        total = f"{len(record.removed)} of {pruning.total} heads can go: {named}" if many else f"{named} can go"
        end = ", lower without them" if rise.high < 0 else ""
        end += "" if record.budget_kept is None else f", within the budget of {numeral(limit)}"
        end += "; full list in the table" if many else ""
        return Verdict("calm", f"{total}{'; ' if many else ': '}{cost}{end}.")
    if record.budget_kept is False:
        return Verdict("warning", f"{budget}: without {named} {cost}.")
    return Verdict("note", f"Without {named} {cost}.")


def _cheapest(record: Treatment) -> str:
    pruning = _pruning(record)
    if not pruning.checked:
        return ""
    last = pruning.checked[-1]
    first = names(_order(pruning)[:1])
    return f": on the checking text {first}, the first to go, costs {_rise(last)}"


def sentences(record: Treatment) -> tuple[str, ...]:
    """Return the verdict, how the heads were chosen, why the others stay, and the findings that changed."""
    return (verdict(record).sentence, *what_goes(record), *what_stays(record), findings_words(record))


def more_text(record: Treatment) -> str:
    """Say how much text would decide about more heads, if their mean cost is within the budget; else return ''."""
    pruning, rise = _pruning(record), record.loss
    if math.isnan(pruning.budget):
        return ""
    if record.removed and not record.budget_kept:
        if not math.isfinite(rise.high):
            return "The held-out text is a single document, which gives no interval: give several documents."
        times = times_as_much(rise.mean, rise.high - rise.mean, pruning.budget)
        subject = "The mean on the held-out text is within the budget, but its interval is not."
    else:
        # `step_back` asks for twice the half-width on the checking text.
        failed = pruning.checked[: -1 if record.removed else None]
        wanted = [(cost, times_as_much(cost.rise, 2 * (cost.high - cost.rise), pruning.budget)) for cost in failed]
        cost, times = next(((cost, times) for cost, times in wanted if times <= MOST_TIMES), (None, math.inf))
        if cost is None:
            return ""
        subject = (
            f"On the checking text {count(cost.removed, 'head')} cost {_rise(cost)}: too uncertain, not too large."
        )
        if cost is pruning.checked[-1]:  # the verdict names it
            subject = f"The cost of {names(_order(pruning)[:1])} is too uncertain, not too large."
    if times > MOST_TIMES:
        return ""
    sequences = times * len(record.arms["before"].losses)
    return f"{subject} About {times:.0f} times as much text may decide: give {sequences:,.0f} sequences (`samples`)."


def times_as_much(mean: float, reach: float, budget: float) -> float:
    """Return by what factor the text must grow until mean + reach is within the budget, if the mean stays; or inf.

    The reach of an interval falls with the square root of the amount of text: mean + reach / sqrt(times) = budget.
    """
    if not (math.isfinite(reach) and mean < budget):
        return math.inf
    return float(math.ceil((reach / (budget - mean)) ** 2))


def sections(record: Treatment, pictures: tuple[Figure, ...]) -> tuple[Section, ...]:
    """Return the heads first, and of the findings only those that changed.

    Findings count the heads that are left, before and after. The sentence of a finding counts all heads of its arm, so
    it is not shown here.
    """
    cost = tuple(figure for figure in pictures if figure.name == "cost")
    others = tuple(figure for figure in pictures if figure.name == "pruning")
    stays = tuple(what_stays(record))
    moved = changed(record)
    curve = (curve_table(record),) if _pruning(record).curve else ()
    return (
        Section(
            "What goes, and what it costs",
            background=(f"{CHECKED if _pruning(record).checked else CHOSEN} {JUDGED}",),
            items=tuple(what_goes(record)),
            figures=cost,
            notes=record.notes,
            tables=curve,
            link="What goes",
        ),
        *([Section("What stays, and why", items=stays, link="What stays")] if stays else []),
        Section("Every head", tables=(heads_table(record),), detail=True),
        Section("Orders compared", figures=others, tables=(orders_table(record),), detail=True),
        Section(
            "Findings of the heads that are left",
            sentences=(findings_words(record),),
            tables=(counts_table(moved, record),) if moved else (),
            link="Findings",
        ),
    )


def what_goes(record: Treatment) -> list[str]:
    pruning = _pruning(record)
    before, after = record.arms["before"], record.arms["treated"]
    without = f" before, and {numeral(after.loss, 4)} without {count(pruning.removed, 'head')} of {pruning.total}"
    lines = [
        f"Held-out loss is {numeral(before.loss, 4)} nats per token{without if pruning.removed else ''} "
        f"({_how_many(record)}, {pruning.asked})."
    ]
    by = ORDERS.get(pruning.by, pruning.by)
    fits = [(one, one.fits) for one in pruning.orders if one.fits is not None and one.name != "random"]
    if fits and math.isnan(pruning.budget):
        losses = ", ".join(f"{numeral(one.choosing_loss, 4)} {ORDERS.get(one.name, one.name)}" for one, _ in fits)
        lines.append(f"The order is {by}. Loss on the choosing text without as many heads: {losses}.")
    elif fits:
        allowed = ", ".join(f"{number} {ORDERS.get(one.name, one.name)}" for one, number in fits)
        lines.append(f"The order is {by}. Heads that fit the budget on the choosing text: {allowed}.")
    else:
        lines.append(f"The order is {by}.")
    if len(pruning.checked) > 1:
        first, last = pruning.checked[0], pruning.checked[-1]
        lines.append(
            f"On the checking text {count(first.removed, 'head')} cost {_rise(first)}, and the number was lowered to "
            f"{pruning.removed}" + (f", which cost {_rise(last)}." if pruning.removed else ".")
        )
    return lines


def _how_many(record: Treatment) -> str:
    """Return the number of held-out sequences, and of their documents if these are fewer: intervals are over them."""
    sequences, documents = len(record.arms["before"].losses), len(set(record.texts))
    of = f" of {count(documents, 'document')}" if 0 < documents < sequences else ""
    return f"{count(sequences, 'sequence')}{of}"


def what_stays(record: Treatment) -> list[str]:
    pruning = _pruning(record)
    stays = pruning.total - pruning.removed
    lines = [] if pruning.removed else [f"All {count(pruning.total, 'head')} stay."]
    after = next((cost for cost in pruning.curve if cost.removed == pruning.removed + 1), None)
    if after is not None and pruning.removed:
        following = names(_order(pruning)[pruning.removed : pruning.removed + 1])
        which = "The head that follows in the order" if stays > 1 else "The last head"
        lines.append(
            f"{count(stays, 'head')} stay{'s' if stays == 1 else ''}. {which} is {following}: without it too, held-out "
            f"loss {_rise(after)}{_past(after, pruning)}."
        )
    if unsure := more_text(record):
        lines.append(unsure)
    for one in backed_up(record):
        alone, among = signed(one.alone), signed(one.among)
        if one.partner is None:
            lines.append(
                f"{_name(one.place)} costs {alone} alone and {among} beside those that go: several of them back it up."
            )
        else:
            other = next(cost for cost in pruning.costs if cost.place == one.partner)
            lines.append(
                f"{_name(one.place)} and {_name(one.partner)} back each other up: without one of them the loss changes "
                f"by {alone} or {signed(other.alone)}, without both by {signed(one.together)} (choosing text)."
            )
    left = [cost for cost in pruning.costs if cost.place not in record.removed]
    if left:
        dearest = max(left, key=lambda cost: cost.among)
        lines.append(f"The head that costs most is {_name(dearest.place)}: {signed(dearest.among)} (choosing text).")
    return lines


def backed_up(record: Treatment) -> list[HeadCost]:
    """Return the heads that stay, could go alone, and cannot go with the others, the dearest first."""
    pruning = _pruning(record)
    found = [cost for cost in pruning.costs if cost.place not in record.removed and cost.backed_up(pruning.limit)]
    return sorted(found, key=lambda cost: cost.alone - cost.among)[:3]


def changed(record: Treatment) -> list[Outcome]:
    return [outcome for outcome in record.outcomes if outcome.judgement != "no effect"]


def findings_words(record: Treatment) -> str:
    moved, every = len(changed(record)), len(record.outcomes)
    if not record.removed:
        return "No head goes, so no finding changes."
    if not every:
        return "The heads that are left have no finding, before or after."
    return f"{moved or 'None'} of {count(every, 'finding')} changed beyond chance, among the heads that are left."


def curve_table(record: Treatment) -> Table:
    pruning = _pruning(record)
    order = _order(pruning)
    last, rows = 0, []
    for cost in pruning.curve:
        rows.append((str(cost.removed), names(order[last : cost.removed]) or "none", _rise(cost)))
        last = cost.removed
    return Table(("heads out", "added", "held-out loss"), tuple(rows), align="rll", brief=8)


def heads_table(record: Treatment) -> Table:
    """Return every head in the order of removal, with its costs and why it goes or stays."""
    pruning = _pruning(record)
    costs = {cost.place: cost for cost in pruning.costs}
    backed = {cost.place for cost in backed_up(record)}
    rows = []
    for number, place in enumerate(_order(pruning)):
        fate = "goes" if number < pruning.removed else "stays: backed up" if place in backed else "stays"
        known = costs.get(place)
        alone, among = ("", "") if known is None else (signed(known.alone), _among(known))
        rows.append((_name(place), fate, alone, among))
    read = f"{count(pruning.effect_sequences, 'sequence')} ({pruning.effect_tokens:,} tokens)"
    return Table(
        ("head", "", "alone", "beside the others"),
        tuple(rows),
        note=COSTS.format(read) if costs else "",
        align="llrl",
    )


def orders_table(record: Treatment) -> Table:
    pruning = _pruning(record)
    rows = [
        (str(number), *(numeral(order.losses[place], 4) for order in pruning.orders))
        for place, number in enumerate(pruning.counts)
    ]
    heading = ("heads out", *(ORDERS.get(order.name, order.name) for order in pruning.orders))
    return Table(heading, tuple(rows), note="Held-out loss, nats per token.", align="r" * len(heading))


def names(places: Sequence[tuple[int, int]]) -> str:
    """Return `2.0, 3.1, 4.2`, block and head; of a long list the first ones and how many more there are."""
    shown = places if len(places) <= NAMED else places[: NAMED // 2]
    more = "" if len(shown) == len(places) else f" and {len(places) - len(shown)} more"
    return ", ".join(map(_name, shown)) + more


def signed(value: float) -> str:
    """Return a change of loss with its sign, or 0 below a millionth of a nat, or `unknown` for NaN.

    It has up to four decimals, from 0.1 on up to three, and two figures if rounding would give 0.
    """
    if not abs(value) >= 1e-6:
        return "unknown" if math.isnan(value) else "0"
    digits = f"{abs(value):.4f}" if abs(value) < 0.1 else f"{abs(value):.3f}"
    if float(digits) == 0:
        digits = numeral(abs(value), 2)
    return f"{'+' if value > 0 else '−'}{digits.rstrip('0').rstrip('.') if '.' in digits else digits}"


def _name(place: tuple[int, int]) -> str:
    return f"{place[0]}.{place[1]}"


def _order(pruning: Pruning) -> tuple[tuple[int, int], ...]:
    return next((one for one in pruning.orders if one.name == pruning.by), pruning.orders[0]).heads


def _rise(cost: Cost) -> str:
    if math.isnan(cost.low):
        return signed(cost.rise)
    return f"{signed(cost.rise)} ({signed(cost.low)} to {signed(cost.high)})"


def _among(cost: HeadCost) -> str:
    return _rise(Cost(1, cost.among, cost.among_low, cost.among_high))


def _past(cost: Cost, pruning: Pruning) -> str:
    if math.isnan(pruning.budget) or math.isnan(cost.high):
        return ""
    if cost.high <= pruning.budget:
        return ", but the checking text did not allow it"
    return f", which {'is' if cost.low > pruning.budget else 'may be'} past the budget of {numeral(pruning.budget)}"


def _pruning(record: Treatment) -> Pruning:
    assert record.pruning is not None
    return record.pruning
