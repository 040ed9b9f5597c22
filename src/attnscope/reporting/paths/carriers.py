"""Who carries the target: the verdict of a decomposition, what the model says and which heads it comes through.

Heads alone are players here: a path through k heads gives each of them an equal share, which is the head's Shapley
value, and MLPs belong to their blocks. Values of all heads then add up to the target less what paths through no head
give. Heads carry the target when they are the fewest whose positive values reach `CARRIED` of all positive values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnscope.charts.path_rows import head_name, signed
from attnscope.core.numerals import numeral
from attnscope.core.words import count
from attnscope.records.paths import PathReport
from attnscope.reporting.paths.vocabulary import chance, listed, other_than_said, quoted, target_is
from attnscope.reporting.verdict import Verdict

CARRIED, IN_WORDS = 2 / 3, "two thirds"
FEW = 4  # heads that a sentence can name
FAINT = 0.05  # of all that is moved: heads that move less hardly matter
# As for lengths: where P is added, N taken away and P + N > 3 |P - N|, more cancels than is left.
CANCEL = 3.0
ROUNDING = 1e-12  # three equal heads: two of them are two thirds, whatever the last digit says


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
    """All heads, from the largest value of either sign to the smallest."""
    found = [Head(block, head, v) for block, row in enumerate(report.head_values) for head, v in enumerate(row)]
    return sorted(found, key=lambda one: (-abs(one.value), one.block, one.head))


def carriers(report: PathReport) -> list[Head]:
    """The fewest heads whose positive values reach `CARRIED` of all positive values; none where none is positive."""
    adding = [one for one in heads(report) if one.value > 0]
    enough = CARRIED * sum(one.value for one in adding) * (1 - ROUNDING)
    chosen: list[Head] = []
    while sum(one.value for one in chosen) < enough:
        chosen.append(adding[len(chosen)])
    return chosen


@dataclass(frozen=True)
class Balance:
    """What heads add and take away, and what paths through no head give."""

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
    values = [one.value for one in heads(report)]
    adds, takes = (sum((max(side * v, 0.0) for v in values), 0.0) for side in (1, -1))
    return Balance(adds, takes, report.lengths[0].value)


def verdict(report: PathReport) -> Verdict:
    """What the model says, and who carries it. A decomposition is neither good news nor bad."""
    return Verdict("info", f"{_says(report)} {_carried(report)}")


def _says(report: PathReport) -> str:
    own, goal = report.lengths[-1].up_to, report.goal
    if own.predicted is None or own.probability is None or own.target_probability is None:
        return f"{target_is(report)}."
    said = f"{'class ' if report.output == 'classes' else ''}{quoted(own.predicted)} ({chance(own.probability)})"
    where = "" if goal is None else goal.where
    start = f"{where[0].upper()}{where[1:]} the model says" if where else "The model says"
    if goal is not None and goal.kind == "difference":
        return f"{start} {said}; asked is the logit of {quoted(goal.word)} minus that of {quoted(goal.other)}."
    if other_than_said(report):
        asked = "the target" if goal is None else quoted(goal.word)
        return f"{start} {said}; asked is {asked} ({chance(own.target_probability)})."
    if where == "after the last token" and report.output == "tokens":
        return f"Next token {said}."
    return f"{start} {said}."


def _carried(report: PathReport) -> str:
    found, moved = heads(report), balance(report)
    if not found:
        return "There are no heads that could carry it."
    all_of_them = "its only head" if len(found) == 1 else f"all {len(found)} heads together"
    if moved.kind == "faint" and report.lengths[0].up_to.predicted != report.lengths[-1].up_to.predicted:
        # A logit may be large whatever is said: what decides is its lead over others.
        return (
            f"Heads decide what is said, though they hardly move this number: {all_of_them} {signed(moved.left)}, "
            f"paths through no head {signed(moved.alone)}."
        )
    if moved.kind == "faint":
        return f"Heads hardly move it: {all_of_them} {signed(moved.left)}, paths through no head {signed(moved.alone)}."
    if moved.kind == "cancelled":
        most, least = (choose(found, key=lambda one: one.value) for choose in (max, min))
        return (
            f"Heads cancel: some add {numeral(moved.adds)}, others take {numeral(moved.takes)} away, which leaves "
            f"{signed(moved.left)}; the strongest are {most.words} and {least.words}."
        )
    if moved.kind == "against":
        worst = min(found, key=lambda one: one.value)
        return f"Heads work against it: {all_of_them} {signed(moved.left)}, most of all {worst.words}."
    return _few_or_many(carriers(report), len(found), moved)


def _few_or_many(chosen: list[Head], of: int, moved: Balance) -> str:
    """Heads carry a target of which they give more than paths through no head do; of another one they add a part."""
    adds = moved.adds
    share = 100 * sum(one.value for one in chosen) / adds
    taken = f" (others take {numeral(moved.takes)} away)" if moved.takes > 0 else ""
    of_all = f"of the {signed(adds)} that heads add{taken}"
    if moved.alone > moved.left:
        most = f"Most of it comes through no head ({signed(moved.alone)} of {numeral(moved.alone + moved.left)})"
        names = listed([one.words for one in chosen[:FEW]])
        whose = f"{len(chosen)} of {count(of, 'head')}, {'first' if len(chosen) > FEW else 'namely'} {names}"
        return f"{most}; {of_all}, {share:.0f}% is that of {whose}."
    if len(chosen) > FEW:
        first = chosen[0]
        return (
            f"It is spread over many heads: it takes {len(chosen)} of {of} to reach {IN_WORDS} {of_all}; "
            f"the largest is {first.words}, {100 * first.value / adds:.0f}% of it."
        )
    names = listed([one.words for one in chosen])
    if len(chosen) == of:
        return f"{'Its only head carries' if of == 1 else f'All {of} heads carry'} it: {names}."
    together = "together " if len(chosen) > 1 else ""
    carry = "carries" if len(chosen) == 1 else "carry"
    return f"{len(chosen)} of {count(of, 'head')} {carry} it: {names}, {together}{share:.0f}% {of_all}."
