"""Which heads are taken out of a model that has too many of them, and in which order.

Estimates rank heads: the first-order change of log p, <d log p / do_h, r_h - o_h>, with o_h the output of head h and
r_h its replacement; the same of the target T; and the values of the frozen network. Values are included because
derivatives are small where a norm or softmax is saturated. The three take turns, and log p, the best of them, has two
turns of four. If T is a difference of two logits or a norm, log p does not choose, and the other two take turns.

Heads are then taken out in batches of `SOME`, in that order, until a batch has no head that matters, or `MOST` were
taken out. `docs/paths.md` says which share of the heads that matter is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from attnscope.commands.paths.effect_record import Effects, HeadEffect
from attnscope.hf.editing.replacing import Place

Item = TypeVar("Item")
ALL = 72  # heads up to which all are taken out
SOME, MOST = 20, 160  # heads in a batch, and the most that are taken out if there are more than `ALL`
TURNS = {2: (0, 1), 3: (0, 1, 0, 2)}  # by number of estimates


def largest_in_turn(
    items: Sequence[Item], sizes: Sequence[Sequence[float]], most: int, turns: Sequence[int] | None = None
) -> list[Item]:
    """Return the items of largest absolute size; if each has several sizes, the largest by each of them in turn.

    `turns` are the sizes in the order in which they choose; a size may have several turns. An item that was chosen
    before uses up a turn.
    """
    turns = range(len(sizes[0]) if sizes else 0) if turns is None else turns
    rankings = {k: iter(sorted(range(len(items)), key=lambda i: -abs(sizes[i][k]))) for k in dict.fromkeys(turns)}
    order: dict[int, None] = {}
    while turns and len(order) < min(most, len(items)):
        order |= dict.fromkeys(i for k in turns for i in [next(rankings[k], None)] if i is not None)
    return [items[i] for i in list(order)[:most]]


def measured_in_batches(
    every: Sequence[Place],
    guesses: Callable[[Sequence[Place]], Sequence[Sequence[float]]],
    measure: Callable[[Sequence[Place]], Sequence[HeadEffect]],
    found: Effects,
) -> tuple[HeadEffect, ...]:
    """Measure all heads if they are few, else those with the largest estimates; return them in order of blocks.

    `found` says which heads matter.
    """
    if len(every) <= ALL:
        return tuple(measure(every))
    sizes = guesses(every)
    order = largest_in_turn(every, sizes, MOST, TURNS[len(sizes[0])])
    made: list[HeadEffect] = []
    for start in range(0, len(order), SOME):
        batch = measure(order[start : start + SOME])
        made += batch
        if not any(found.notable(one) for one in batch):
            break
    return tuple(sorted(made, key=lambda one: one.place))
