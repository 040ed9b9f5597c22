"""Sentences on the frozen network: which lengths the target comes from, and which heads carry it by their values.

Only heads are players here: a path through k heads gives each of them an equal share, and the Shapley value of a head
is the sum of its shares. MLPs belong to their blocks. The values of all heads add up to the target minus the
contribution of paths through no head. The heads that carry the target are the fewest whose values reach `CARRIED` of
all positive values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.vocabulary import (
    all_known,
    at_most,
    chance,
    exactly,
    from_on,
    head_name,
    other_than_said,
    quoted,
    share,
    signed,
    target_is,
    target_word,
)
from attnscope.core.words import count, numeral
from attnscope.reports.words import listed

# Positive lengths (or heads) add up to P, negative ones to -N, and P - N is the target. P + N > 3 |P - N| means that
# N > P - N: more cancels than is left, and shares of the target are meaningless.
CANCEL = 3.0
MUCH_CONSTANT = 0.25  # constants below this share of the input's contribution (absolute) are not mentioned
MOST_NAMED = 3  # lengths in one sentence
NEAR = 0.05  # a loss within this many nats of the model's own loss is near it


def origin(report: PathReport) -> list[str]:
    """Return sentences on which lengths the target comes from, which suffice, and which are needed."""
    return [_by_length(report), *_constants(report), *_suffices(report), *_target(report), *_without(report)]


def _by_length(report: PathReport) -> str:
    """Return a sentence on the shares of the largest lengths, or on lengths that cancel."""
    whole, rows = report.value, report.lengths
    sizes = sum(abs(row.value) for row in rows)
    if not whole and not sizes:
        return f"{target_is(report)}: paths of every length give nothing."
    if sizes > CANCEL * abs(whole):
        most, least = (choose(rows, key=lambda row: row.value) for choose in (max, min))
        first, second = sorted((most, least), key=lambda row: -abs(row.value))
        return (
            f"{target_is(report)}, and lengths cancel: their sizes add up to {numeral(sizes)}. The largest of either "
            f"sign are paths through {exactly(first.length)} ({signed(first.value)}) and "
            f"through {exactly(second.length)} ({signed(second.value)})."
        )
    seen = [row for row in rows if abs(row.value) >= abs(whole) / 200]
    named = sorted(sorted(seen, key=lambda row: -abs(row.value))[:MOST_NAMED], key=lambda row: row.length)
    if whole <= 0:  # shares of a negative number would mislead
        parts = [f"{signed(row.value)} through {exactly(row.length)}" for row in named]
        return f"{target_is(report)}: {listed(parts)}."
    shares = [f"{share(row.value / whole)} through {exactly(row.length)}" for row in named]
    shares[0] = shares[0].replace(" through", " of it comes from paths through", 1)
    rest = 1 - sum(row.value for row in named) / whole
    if len(named) < len(rows) and abs(rest) >= 0.005:
        shares.append(f"{share(rest)} from all others")
    return f"{target_is(report)}: {listed(shares)}."


def constants_matter(report: PathReport) -> bool:
    stream, constants = _sizes(report)
    return bool(constants) and constants >= MUCH_CONSTANT * stream


def _constants(report: PathReport) -> list[str]:
    if not constants_matter(report):
        return []
    stream, constants = sum(row.stream for row in report.lengths), sum(row.constants for row in report.lengths)
    of_stream, of_constants = _sizes(report)
    said = (
        f"Not all of it comes from the text: paths from constants (biases, shifts of norms) add {signed(constants)} "
        f"and paths from the input {signed(stream)}"
    )
    if (numeral(of_constants), numeral(of_stream)) != (numeral(abs(constants)), numeral(abs(stream))):
        said += f"; by length, their sizes add up to {numeral(of_constants)} and {numeral(of_stream)}"
    return [f"{said}."]


def _sizes(report: PathReport) -> tuple[float, float]:
    """Return the absolute contributions of the input and of constants, summed over lengths."""
    return sum(abs(row.stream) for row in report.lengths), sum(abs(row.constants) for row in report.lengths)


def _suffices(report: PathReport) -> list[str]:
    own = report.lengths[-1].up_to
    if own.predicted is None:
        k = from_on([row.up_to.distance < 0.1 for row in report.lengths])
        what = "states" if report.position is None else f"state at token {report.position}"
        return [] if k is None else [f"Paths through {at_most(k)} give the model's {what} within a tenth."]
    k = from_on([row.up_to.predicted == own.predicted for row in report.lengths])
    assert k is not None
    now = report.lengths[k].up_to
    if k == len(report.lengths) - 1:
        sentences = [f"It takes paths of all lengths to predict {quoted(own.predicted)}."]
    else:
        probability = "" if now.probability is None else f" ({chance(now.probability)})"
        sentences = [f"Paths through {at_most(k)} suffice to predict {quoted(own.predicted)}{probability}."]
    if k > 0:
        before = report.lengths[k - 1].up_to
        sentences[0] += f" With {at_most(k - 1)} the model would say {quoted(before.predicted)}."
    losses = all_known(row.up_to.loss for row in report.lengths)
    if losses:
        first, last = losses[0], losses[-1]
        close = from_on([abs(loss - last) <= NEAR for loss in losses])
        assert close is not None
        way = "falls" if last < first else "rises" if last > first else "stays"
        near = f"; paths through {at_most(close)} come within {NEAR} of that" if 0 < close < len(losses) - 1 else ""
        sentences.append(
            f"Over the whole text, the next-token loss {way} from {numeral(first)} with no head to {numeral(last)} "
            f"with all paths{near}."
        )
    return sentences


def _target(report: PathReport) -> list[str]:
    """Return a sentence on the probability of the target, if the model predicts something else."""
    chances = all_known(row.up_to.target_probability for row in report.lengths)
    if not other_than_said(report) or not chances:
        return []
    k = max(range(len(chances)), key=chances.__getitem__)
    start = f"The target, {target_word(report)}, has probability {chance(chances[0])} with paths through no head"
    peak = chance(chances[k])
    beyond = peak not in (chance(chances[0]), chance(chances[-1]))
    most = f", most with those through {at_most(k)} ({peak})" if beyond else ""
    return [f"{start}{most}, and {chance(chances[-1])} in the whole model."]


def _without(report: PathReport) -> list[str]:
    own = report.lengths[-1].up_to.predicted
    if own is None:
        return []
    changed = [row for row in report.lengths if row.without.predicted != own]
    if not changed:
        return [f"Without any one length of paths, the model would still say {quoted(own)}."]
    words = [f"through {exactly(row.length)} the model would say {quoted(row.without.predicted)}" for row in changed]
    others = len(changed) - MOST_NAMED
    which = "one other length" if others == 1 else f"any one of {others} other lengths"
    more = f"; without {which} it would also say something else" if others > 0 else ""
    return [f"Without paths {'; without those '.join(words[:MOST_NAMED])}{more}."]


CARRIED, IN_WORDS = 2 / 3, "two thirds"
FEW = 4  # heads that a sentence can name
FAINT = 0.05  # heads hardly matter if they contribute less than this share
ROUNDING = 1e-12  # so that two of three equal heads count as two thirds


@dataclass(frozen=True)
class Head:
    """One head and its Shapley value."""

    block: int
    head: int
    value: float

    @property
    def words(self) -> str:
        return f"{head_name(self.block, self.head)} ({signed(self.value)})"


def heads(report: PathReport) -> list[Head]:
    """Return all heads, largest absolute value first."""
    found = [Head(block, head, v) for block, row in enumerate(report.head_values) for head, v in enumerate(row)]
    return sorted(found, key=lambda item: (-abs(item.value), item.block, item.head))


def carriers(report: PathReport) -> list[Head]:
    """Return the fewest heads whose values reach `CARRIED` of all positive values."""
    adding = [head for head in heads(report) if head.value > 0]
    enough = CARRIED * sum(head.value for head in adding) * (1 - ROUNDING)
    chosen: list[Head] = []
    while sum(head.value for head in chosen) < enough:
        chosen.append(adding[len(chosen)])
    return chosen


@dataclass(frozen=True)
class Balance:
    """The sums of positive and of negative values of heads, and the contribution of paths through no head."""

    adds: float
    takes: float
    alone: float

    @property
    def left(self) -> float:
        return self.adds - self.takes

    @property
    def kind(self) -> Literal["faint", "cancelled", "against", "carried"]:
        moved = self.adds + self.takes
        if moved <= FAINT * (moved + abs(self.alone)):
            return "faint"
        if moved > CANCEL * abs(self.left):
            return "cancelled"
        return "carried" if self.left > 0 else "against"


def balance(report: PathReport) -> Balance:
    values = [head.value for head in heads(report)]
    adds, takes = (sum((max(side * v, 0.0) for v in values), 0.0) for side in (1, -1))
    return Balance(adds, takes, report.lengths[0].value)


def measured_without(report: PathReport, head: Head) -> str:
    """Return what was measured without a head, to be said beside what its values subtract."""
    found = report.effects
    one = None if found is None else next((x for x in found.heads if x.place == (head.block, head.head)), None)
    if found is None or one is None:
        return ""
    if found.follows == "target" or one.probability is None or found.probability is None:
        what = "the difference is" if found.follows == "target" else "the target is"
        measured, own = numeral(found.value - one.total), numeral(found.value)
    else:
        what, measured, own = f"{target_word(report)} has", chance(one.probability), chance(found.probability)
    return f" (taken out of the model itself, {what} {measured}, not {own})"


def frozen_heads(report: PathReport) -> str:
    """Say which heads carry the target in the frozen network."""
    said = _carried(report)
    return f"In the frozen network (values only) {said[0].lower()}{said[1:]}"


def _carried(report: PathReport) -> str:
    all_heads, moved = heads(report), balance(report)
    if not all_heads:
        return "There are no heads that could carry it."
    all_of_them = "its only head" if len(all_heads) == 1 else f"all {len(all_heads)} heads together"
    if moved.kind == "faint" and report.lengths[0].up_to.predicted != report.lengths[-1].up_to.predicted:
        # All logits may be large: only the lead of one over the others decides the prediction.
        return (
            f"Heads decide the prediction, though they hardly move this number: {all_of_them} {signed(moved.left)}, "
            f"paths through no head {signed(moved.alone)}."
        )
    if moved.kind == "faint":
        return f"Heads hardly move it: {all_of_them} {signed(moved.left)}, paths through no head {signed(moved.alone)}."
    if moved.kind == "cancelled":
        most, least = (choose(all_heads, key=lambda head: head.value) for choose in (max, min))
        return (
            f"Heads cancel: some add {numeral(moved.adds)}, others subtract {numeral(moved.takes)}, which leaves "
            f"{signed(moved.left)}; the strongest are {most.words} and {least.words}{measured_without(report, least)}."
        )
    if moved.kind == "against":
        worst = min(all_heads, key=lambda head: head.value)
        measured = measured_without(report, worst)
        return f"Heads subtract: {all_of_them} {signed(moved.left)}, most of all {worst.words}{measured}."
    return _few_or_many(carriers(report), len(all_heads), moved)


def _few_or_many(chosen: list[Head], of: int, moved: Balance) -> str:
    """Name the heads that carry the target, or say that it comes through no head or through many."""
    adds = moved.adds
    share = 100 * sum(head.value for head in chosen) / adds
    taken = f" (others subtract {numeral(moved.takes)})" if moved.takes > 0 else ""
    of_all = f"of the {signed(adds)} that heads add{taken}"
    if moved.alone > moved.left:
        most = f"Most of it comes through no head ({signed(moved.alone)} of {numeral(moved.alone + moved.left)})"
        names = listed([head.words for head in chosen[:FEW]])
        begin = "first " if len(chosen) > FEW else ""
        return f"{most}; {share:.0f}% {of_all} comes from {len(chosen)} of {count(of, 'head')}: {begin}{names}."
    if len(chosen) > FEW:
        first = chosen[0]
        return (
            f"It is spread over many heads: it takes {len(chosen)} of {of} to reach {IN_WORDS} {of_all}; "
            f"the largest is {first.words}, {100 * first.value / adds:.0f}% of it."
        )
    names = listed([head.words for head in chosen])
    if len(chosen) == of:
        return f"{'Its only head carries' if of == 1 else f'All {of} heads carry'} it: {names}."
    together = "together " if len(chosen) > 1 else ""
    carry = "carries" if len(chosen) == 1 else "carry"
    return f"{len(chosen)} of {count(of, 'head')} {carry} it: {names}, {together}{share:.0f}% {of_all}."
