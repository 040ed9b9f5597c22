"""The first sentences of a decomposition: what the model predicts, and which heads its answer needs.

Heads are named only after they were taken out of the model, with everything after them responding, and the probability
of the target, or the difference of two logits, changed by more than the share `NOTABLE`. Sums over paths never name a
head here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from attnscope.commands.paths.effect_record import EdgeEffect, Effects, HeadEffect, SetEffect
from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.vocabulary import (
    chance,
    head_name,
    other_than_said,
    quoted,
    share,
    target_is,
    target_word,
    visible,
)
from attnscope.core.words import count, numeral
from attnscope.reports.words import Verdict, listed

FEW = 4  # heads that a sentence names
FROZEN = "Sums over paths are those of the frozen network (values only)."
BY = {
    "mean": "its mean output on other texts",
    "resample": "its output on other texts",
    "zero": "zero",
}


def verdict(report: PathReport) -> Verdict:
    """Say what the model predicts, and which heads it needs, if heads were taken out."""
    found = report.effects
    needs = [] if found is None else [needed(report, found)]
    return Verdict("note", " ".join([_says(report), *needs, FROZEN]))


def replaced_by(found: Effects) -> str:
    """Say what replaces a head that is taken out."""
    source = "" if found.replacement == "zero" else f" ({found.reference})"
    return f"{BY[found.replacement]}{source}"


def without(found: Effects, one: HeadEffect | EdgeEffect | SetEffect) -> str:
    """Return what is left without the heads: the probability, or the target if heads are judged by that."""
    if not found.of_probability or one.probability is None:
        return numeral(found.value - one.total)
    return chance(one.probability)


def names(places: Sequence[tuple[int, int]]) -> str:
    """Return `block 0 head 1` or `block 1 heads 0 and 3, and block 2 head 1`."""
    parts = []
    for block, some in groupby(sorted(places), key=lambda place: place[0]):
        heads = [str(head) for _, head in some]
        parts.append(head_name(block, int(heads[0])) if len(heads) == 1 else f"block {block} heads {listed(heads)}")
    return listed(parts)


def looking(found: Effects) -> dict[tuple[int, int], list[EdgeEffect]]:
    """Return the edges of each needed head into the queries and keys of other needed heads.

    A head is needed if the answer becomes notably less likely without it. Only edges of which the same holds count.
    """
    needs = {one.place for one in found.named if found.change(one) < 0}
    circuits: dict[tuple[int, int], list[EdgeEffect]] = {}
    for edge in found.edges:
        lowers = found.notable(edge) and found.change(edge) < 0
        if lowers and edge.by != "value" and {edge.sender, edge.reader} <= needs:
            circuits.setdefault(edge.sender, []).append(edge)
    return circuits


def needed(report: PathReport, found: Effects) -> str:
    """Return a sentence on the heads that the answer needs."""
    named, it = found.named, _it(report)
    if not named:
        return _together(it, found) or _nothing(it, found)
    needs = [one for one in named if found.change(one) < 0]
    if not needs:
        against = [f"{head_name(*one.place)} ({without(found, one)})" for one in named[:FEW]]
        return f"{_none(found)} carries {it}; {it} would be {_more(found)} without {listed(against)}."
    it = f"{it[0].upper()}{it[1:]}"
    circuits = looking(found)
    for sender, edges in circuits.items():
        if any(edge.induction for edge in edges):
            return _induction(it, found, sender, [edge for edge in edges if edge.induction])
    first = []
    for one in needs[:FEW]:
        readers = {edge.reader for edge in circuits.get(one.place, ())}
        looks = "looks" if len(readers) == 1 else "look"
        moves = f"; it moves where {names(sorted(readers))} {looks}" if readers else ""
        first.append(f"{head_name(*one.place)} (without it {without(found, one)}{moves})")
    others = len(needs) - FEW
    least = "" if found.whole else "at least "
    more = f", and on {least}{count(others, 'other')}" if others > 0 else ""
    return f"{it} depends on {listed(first)}{more}{_measured(found)}."


def _induction(it: str, found: Effects, sender: tuple[int, int], edges: Sequence[EdgeEffect]) -> str:
    readers = tuple(sorted({edge.reader for edge in edges}))
    writer = next(one for one in found.heads if one.place == sender)
    all_readers = found.of(readers)
    together = all_readers or next(one for one in found.heads if one.place == readers[0])
    copies, them = ("copies", "it") if len(readers) == 1 else ("copy", "them")
    looks = "looks" if len(readers) == 1 else "look"
    return (
        f"{it} is carried by an induction circuit: {head_name(*sender)} writes where {names(readers)} {looks} (without "
        f"it {without(found, writer)}), which {copies} the answer (without {them} {without(found, together)})"
        f"{_measured(found)}."
    )


def _measured(found: Effects) -> str:
    """Say which share of the heads was taken out; nothing if all were."""
    if found.whole:
        return ""
    part = share(len(found.heads) / found.of_heads)
    return f"; {len(found.heads)} of {found.of_heads} heads ({part}) were taken out"


def _it(report: PathReport) -> str:
    """Return the word for what has the numbers that the headline gives."""
    if report.effects is not None and report.effects.follows == "target":
        return "the difference"
    if report.goal is not None and report.goal.kind == "difference":  # files of earlier versions
        return target_word(report)
    return "the target" if other_than_said(report) else "it"


def _more(found: Effects) -> str:
    return "likelier" if found.of_probability else "larger"


def _together(it: str, found: Effects) -> str | None:
    enough = next((one for one in found.sets if found.notable(one)), None)
    if enough is None:
        return None
    together = f"taking out {names(enough.heads)} together leaves {without(found, enough)}"
    return f"{_none(found)} carries {it}; {together}."


def _nothing(it: str, found: Effects) -> str:
    if not found.heads:
        return f"There are no heads that could carry {it}."
    largest = min(found.heads, key=found.size)
    named = f"{head_name(*largest.place)} (without it {without(found, largest)})"
    return f"{_none(found)} carries {it}: the largest effect is that of {named}."


def _none(found: Effects) -> str:
    if found.whole:
        return "No single head"
    part = share(len(found.heads) / found.of_heads)
    return f"None of the {len(found.heads)} heads that were taken out ({part} of {found.of_heads}, chosen by estimates)"


def _says(report: PathReport) -> str:
    own, goal = report.lengths[-1].up_to, report.goal
    if own.predicted is None or own.probability is None or own.target_probability is None:
        return f"{target_is(report)}."
    said = f"{'class ' if report.output == 'classes' else ''}{quoted(own.predicted)} ({chance(own.probability)})"
    where = "" if goal is None else goal.where
    start = f"{where[0].upper()}{where[1:]} the model says" if where else "The model says"
    if goal is not None and goal.kind == "difference":
        difference = f"the logit of {quoted(goal.word)} minus that of {quoted(goal.other)}"
        return f"{start} {said}; {difference} is {numeral(report.value)}."
    if other_than_said(report):
        asked = visible(report.target) if goal is None else quoted(goal.word)
        return f"{start} {said}; the target is {asked} ({chance(own.target_probability)})."
    if where == "after the last token" and report.output == "tokens":
        return f"Next token {said}."
    return f"{start} {said}."


def effect_sentences(report: PathReport) -> list[str]:
    """Return sentences on how heads were taken out, and on those without which the answer is likelier."""
    found = report.effects
    if found is None:
        return []
    taken = count(len(found.heads), "head") if found.whole else f"{len(found.heads)} of {found.of_heads} heads"
    chosen = "" if found.whole else ", those with the largest first-order estimates and frozen values,"
    said = [
        f"{taken}{chosen} {'was' if len(found.heads) == 1 else 'were'} taken out one at a time, with everything after "
        f"responding: a head is replaced by {replaced_by(found)}."
    ]
    against = [one for one in found.named if found.change(one) > 0][:FEW]
    if against and any(found.change(one) < 0 for one in found.named):  # otherwise the headline says it
        named = [f"{head_name(*one.place)} ({without(found, one)})" for one in against]
        what = target_word(report) if found.of_probability else "The target"
        what = "The difference" if found.follows == "target" else what
        each = ", each alone" if len(named) > 1 else ""
        said.append(f"{what} would be {_more(found)} without {listed(named)}{each}.")
    return said
