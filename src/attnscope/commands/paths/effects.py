"""Take heads out of a model at one text, one at a time, in pairs and in sets, and measure what happens to the target.

Let T be the target, and T_F(h), T_P(h), T(h) the target without head h, with more and more of the network responding:

    T_F(h)   patterns, norms and gates frozen: the frozen network is linear, so T - T_F(h) = <g_h, o_h - r_h>, with g_h
             the adjoint of T at the head, o_h its output and r_h what replaces it
    T_P(h)   patterns of later heads respond, norms and gates are frozen (`pathways.responding`)
    T(h)     everything responds: the model itself, with the head's output replaced

    T - T(h)  =  (T - T_F)  +  (T_F - T_P)  +  (T_P - T)
    total        values        patterns        norms and gates

With more than `shortlist.ALL` heads, estimates choose those that are measured (`shortlist`), and only the `SPLIT`
largest effects are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor

from attnscope.commands.paths.answering import Answering, Looking
from attnscope.commands.paths.effect_record import NOTABLE, EdgeEffect, Effects, HeadEffect, Replacement, SetEffect
from attnscope.commands.paths.other_texts import Source
from attnscope.commands.paths.reading import Aim
from attnscope.commands.paths.reference import Reference, reference
from attnscope.commands.paths.shortlist import largest_in_turn, measured_in_batches
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.editing.head_edges import Projection, sent
from attnscope.hf.editing.replacing import HeadOutputs, Place, close
from attnscope.hf.editing.surgery import prunable
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.loading.one_text import Reading
from attnscope.pathways.heads import HeadTable
from attnscope.pathways.network import Network

SPLIT = 20  # effects that are split if not all heads are taken out
SENDERS, EDGES = 6, 12  # heads whose edges are looked for, and edges that are measured
SETS = (2, 4, 8)  # sizes of sets that are tried if no single head matters


UNUSABLE = (RefusalError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def _reason(error: Exception) -> str:
    """Return why heads could not be changed, as a sentence; running out of memory is not caught."""
    if isinstance(error, RefusalError):
        return error.sentence
    if out_of_memory(error):
        raise error
    first = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
    return f"the model's code does not run on changed copies ({type(error).__name__}: {first})."


def measured_effects(
    loaded: Loaded,
    read: Reading,
    network: Network,
    table: HeadTable,
    goal: Aim,
    structure: Anatomy,
    stack: str | None,
    by: str | None,
    seed: int,
    progress: Advance,
    source: Source | None = None,
) -> tuple[Effects | None, tuple[str, ...]]:
    """Measure the effects of heads. Return them, and notes on what could not be measured; None if `by` is None.

    `source` are the caller's texts, whose mean outputs replace a head.
    """
    if by is None:
        return None, ()
    progress("taking heads out", 0, 0)
    try:
        sites = prunable(loaded.model, structure, stack)
        return _effects(loaded, read, network, table, goal, sites, cast(Replacement, by), seed, source)
    except UNUSABLE as error:
        if isinstance(error, RefusalError) and error.parameter == "reference":
            raise
        return None, (f"No head was taken out, so the headline names none: {_reason(error)}",)


def _effects(
    loaded: Loaded,
    read: Reading,
    network: Network,
    table: HeadTable,
    goal: Aim,
    sites: dict[int, Site],
    by: Replacement,
    seed: int,
    source: Source | None,
) -> tuple[Effects, tuple[str, ...]]:
    answering = Answering.of(network, goal)
    heads = HeadOutputs.of(loaded.model, sites, network, answering.first_order)
    others = reference(loaded, read, heads, by, seed, source)
    work = _Work(heads, others, answering, table)
    with torch.no_grad():
        own = answering(heads.streams[-1]).mean(slice(None))
        every = [(block, head) for block, site in sorted(sites.items()) for head in range(site.heads)]
        notes = [others.note] if others.note else []
        follows: Literal["probability", "target"] = "target" if goal.goal.kind == "difference" else "probability"
        found = Effects(by, others.words, *own, len(every), (), follows=follows)
        singles = measured_in_batches(every, work.guesses, lambda some: work.singles(some, own[0]), found)
        found = replace(found, heads=singles)
        found = replace(found, heads=work.split(found, notes))
        found = replace(found, edges=work.edges(found, read, notes))
        return replace(found, sets=work.sets(found)), tuple(notes)


def _in_parts(one: HeadEffect, split: tuple[float, float] | None) -> HeadEffect:
    """Return the effect with its parts. `split` is what is lost by values, and by values and patterns."""
    if split is None:
        return one
    values, with_patterns = split
    rest = one.total - with_patterns
    return replace(one, values=values, patterns=with_patterns - values, norms_and_gates=rest)


@dataclass(frozen=True, eq=False)
class _Work:
    heads: HeadOutputs
    others: Reference
    answering: Answering
    table: HeadTable

    def guesses(self, places: Sequence[Place]) -> list[list[float]]:
        """Estimate what the numbers of `first_order` gain by replacing each head, and what the frozen network loses."""
        return [[*self._first_order(place, self.others.of(place).mean(0)), self._values(place)] for place in places]

    def _values(self, place: Place) -> float:
        """Return what the frozen network loses without a head."""
        block, head = place
        gone = self.table.outputs[block][0, head] - self.others.of(place).mean(0)
        return float((self.table.adjoints[block][0, head] * gone).sum())

    def _first_order(self, place: Place, output: Tensor) -> list[float]:
        block, head = place
        change = output - self.heads.outputs[block][:, head]
        gains: list[float] = (self.heads.gradients[block][:, :, head] * change).sum((1, 2)).tolist()
        return gains

    def _measured(self, sets: Sequence[Sequence[Place]]) -> list[tuple[float, float | None]]:
        """Return the target and the probability without each set of heads, averaged over replacements."""
        draws = self.others.draws
        copies = [{place: self.others.of(place)[draw] for place in some} for some in sets for draw in range(draws)]
        answers = self.answering(self.heads.replaced(copies))
        return [answers.mean(slice(row * draws, (row + 1) * draws)) for row in range(len(sets))]

    def singles(self, places: Sequence[Place], own: float) -> list[HeadEffect]:
        totals = self._measured([(place,) for place in places])
        return [
            HeadEffect(*place, own - target, probability)
            for place, (target, probability) in zip(places, totals, strict=True)
        ]

    def split(self, found: Effects, notes: list[str]) -> tuple[HeadEffect, ...]:
        """Return all heads; effects are split if all heads were measured, otherwise those of the largest effects."""
        chosen = found.heads if found.whole else sorted(found.heads, key=found.size)[:SPLIT]
        places = sorted(one.place for one in chosen)
        splits = dict(zip(places, self._split(places, notes), strict=True))
        return tuple(_in_parts(one, splits.get(one.place)) for one in found.heads)

    def _split(self, places: Sequence[Place], notes: list[str]) -> list[tuple[float, float] | None]:
        """Return, for every head, what the frozen network loses, and what it loses if patterns respond too."""
        last = max(self.heads.sites)
        earlier = [place for place in places if place[0] < last]  # after the last block no pattern responds
        copies = [{place: output} for place in earlier for output in self.others.of(place)]
        try:
            self._refuse_gated()
            moved = self.heads.replaced_partly(copies) if copies else self.heads.streams[-1][:0]
        except UNUSABLE as error:
            notes.append(f"Effects of heads are not split into values, patterns, norms and gates: {_reason(error)}")
            return [None] * len(places)
        lost = -(moved * self.table.last[0]).sum((1, 2)).reshape(-1, self.others.draws).mean(1)
        with_patterns = dict(zip(earlier, lost.tolist(), strict=True))
        found: list[tuple[float, float] | None] = []
        for place in places:
            values = self._values(place)
            found.append((values, with_patterns.get(place, values)))
        return found

    def _refuse_gated(self) -> None:
        """Refuse heads that are changed between attention and output projection: adjoints are those of attention."""
        for block, own in self.heads.outputs.items():
            if not close(self.table.outputs[block][0].transpose(0, 1), own):
                raise RefusalError(
                    f"The heads of block {block} pass a gate or a norm before the output projection: read the whole "
                    "effects."
                )

    def edges(self, found: Effects, read: Reading, notes: list[str]) -> tuple[EdgeEffect, ...]:
        """Measure the edges with the largest first-order estimates, from the heads that matter most."""
        last = max(self.heads.sites)
        senders = [one.place for one in found.named if one.block < last][:SENDERS]
        if not senders:
            return ()
        candidates: list[tuple[Place, Place, Projection, Tensor]] = []
        guesses: list[list[float]] = []
        try:
            for block, by, numbers, outputs in sent(self.heads, [{p: self.others.of(p).mean(0)} for p in senders]):
                changes = outputs - self.heads.outputs[block]
                gains = torch.einsum("gthc,sthc->shg", self.heads.gradients[block], changes).tolist()
                for number, output, gain in zip(numbers, outputs, gains, strict=True):
                    guesses += gain
                    candidates += [(senders[number], (block, h), by, output[:, h]) for h in range(len(gain))]
        except UNUSABLE as error:
            notes.append(f"Edges between heads are not measured: {_reason(error)}")
            return ()
        chosen = largest_in_turn(candidates, guesses, EDGES)
        answers = self.answering(self.heads.replaced([{reader: output} for _, reader, _, output in chosen]))
        looks = Looking(self.heads.network, self.answering.goal, read)
        made = []
        for row, (sender, reader, by, _) in enumerate(chosen):
            target, probability = answers.mean(slice(row, row + 1))
            induction = by == "key" and looks.induction(sender, reader)
            made.append(EdgeEffect(sender, reader, by, found.value - target, probability, induction))
        return tuple(sorted(made, key=found.size))

    def sets(self, found: Effects) -> tuple[SetEffect, ...]:
        """Take out the readers of each sender together; if no single head matters, the heads of largest effect."""
        named = found.named
        needed = {one.place for one in named if found.change(one) < 0}
        tried: list[tuple[Place, ...]] = []
        for sender in dict.fromkeys(edge.sender for edge in found.edges):
            mine = [e for e in found.edges if e.sender == sender and e.by != "value" and found.notable(e)]
            lowering = [e for e in mine if found.change(e) < 0 and e.reader in needed]
            for readers in ({e.reader for e in lowering}, {e.reader for e in lowering if e.induction}):
                if len(readers) > 1:
                    tried.append(tuple(sorted(readers)))
        if tried or named:
            return self._sets(list(dict.fromkeys(tried)), found)
        falling = sorted((one for one in found.heads if found.change(one) < 0), key=found.size)
        tried = [tuple(sorted(one.place for one in falling[:size])) for size in SETS if size <= len(falling)]
        enough = next((one for one in self._sets(tried, found) if found.notable(one)), None)
        while enough is not None:  # drop heads that the set does not need
            smaller = [tuple(p for p in enough.heads if p != left) for left in enough.heads if len(enough.heads) > 2]
            least = max(NOTABLE, 0.9 * abs(found.change(enough)))
            left = [one for one in self._sets(smaller, found) if abs(found.change(one)) > least]
            if not left:
                return (enough,)
            enough = min(left, key=found.size)
        return ()

    def _sets(self, tried: Sequence[tuple[Place, ...]], found: Effects) -> tuple[SetEffect, ...]:
        if not tried:
            return ()
        return tuple(
            SetEffect(some, found.value - target, probability)
            for some, (target, probability) in zip(tried, self._measured(tried), strict=True)
        )
