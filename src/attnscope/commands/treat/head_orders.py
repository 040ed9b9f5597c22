"""Put the heads of a model in the order in which they are removed, the one that matters least first.

    effect         what the loss rises by when the head is taken out of the model, everything after it computed again.
                   It is measured again for the model without the heads before it in the order (`by_effect`)
    size           the exact Shapley value of a head in each prompt (`head_values`), its absolute values summed
    value          the same, summed with its sign: what it adds to the log-probability of the next tokens
    contribution   the share of what its block writes (the measure head_contribution)
    random         several random orders, for comparison

Values and shares come from the same prompts, the beginnings of sequences of the choosing text. Effects are measured on
as much of that text as `effect_text` allows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.commands.paths.removals import head_values
from attnscope.commands.scan.run import scan
from attnscope.commands.treat.halves import in_turns
from attnscope.commands.treat.removal_losses import Place, RemovalLosses
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.data.batches import Batches
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.loading.load import Loaded, precision_and_place
from attnscope.stats.intervals import Interval

PROMPT_TOKENS = 32
RANDOM_ORDERS = 3
PASSES = 3  # the greedy pass measures at most this many removals for each head
Prompts = list[Int[Tensor, " token"]]


@dataclass(frozen=True)
class EffectOrder:
    """The order by effect, and what each head costs when it alone is taken out."""

    order: list[Place]
    alone: dict[Place, Interval]
    measured: int  # heads whose place in the order was measured with all heads before them out; the rest is older


def by_effect(losses: RemovalLosses, places: Sequence[Place], wanted: int, progress: Advance) -> EffectOrder:
    """Take out heads greedily, and measure again before each one.

    Heads can back each other up: either can go, but not both. So single effects do not add up. With the set R out, the
    next head is the h whose removal costs least: the loss without R + {h} minus the loss without R. To measure every h
    after every removal takes n^2 / 2 measurements for n heads. Here only the head that looks cheapest is measured
    again; if it still is the cheapest it goes, else the next one is measured (lazy greedy, Minoux 1978). This is the
    full greedy order if costs only grow while heads go. `PASSES` bounds the measurements, and the pass ends after
    `wanted` heads: the rest follows in the order of the costs that were measured last.

    The cost is the upper end of the interval over texts, so that a head that helps in one text and hurts in another
    is not free because both cancel.
    """
    most = PASSES * len(places)
    alone: dict[Place, Interval] = {}
    for number, place in enumerate(places):
        progress("loss without each head", number, most)
        alone[place] = losses.change("effects", [place])
    cost = {place: cautious(effect) for place, effect in alone.items()}
    measured_with = dict.fromkeys(places, 0)  # heads that were out when the cost of a head was measured last
    order: list[Place] = []
    passes = len(places)
    while len(order) < min(wanted, len(places)) and passes < most:
        left = [place for place in places if place not in order]
        cheapest = min(left, key=lambda place: (cost[place], place))
        if measured_with[cheapest] == len(order):
            order.append(cheapest)
            continue
        progress("loss without heads, measured again", passes, most)
        cost[cheapest] = cautious(losses.change("effects", [*order, cheapest], since=order))
        measured_with[cheapest] = len(order)
        passes += 1
    rest = sorted((place for place in places if place not in order), key=lambda place: (cost[place], place))
    return EffectOrder([*order, *rest], alone, len(order))


def cautious(effect: Interval) -> float:
    """Return the upper end of the interval, or the mean if a single text gives no interval."""
    return effect.high if math.isfinite(effect.high) else effect.mean


def by_value(
    losses: RemovalLosses, structure: Anatomy, places: Sequence[Place], prompts: Prompts, progress: Advance
) -> tuple[list[Place], list[Place]]:
    """Return the heads ordered by Shapley value, summed over prompts, and ordered by its size."""
    worth, size = dict.fromkeys(places, 0.0), dict.fromkeys(places, 0.0)
    for number, ids in enumerate(prompts):
        progress("values of heads", number, len(prompts))

        def measure(ids: Int[Tensor, " token"] = ids) -> list[float]:
            table = head_values(losses.loss.loaded, ids, structure)
            return [float(table[place]) for place in places]

        tokens = " ".join(map(str, ids.tolist()))
        for place, value in zip(places, losses.remembered(f"values {tokens}", measure), strict=True):
            worth[place] += value
            size[place] += abs(value)
    ordered = [sorted(places, key=lambda place, by=by: (by[place], place)) for by in (worth, size)]  # type: ignore[misc]
    return ordered[0], ordered[1]


def by_contribution(loaded: Loaded, places: Sequence[Place], prompts: Batches) -> list[Place]:
    """Return the heads ordered by their mean share of what the block writes."""
    survey = scan(loaded, prompts, measures=["head_contribution"], keep_text=False, trial=False)
    shares = survey.values("head_contribution", stack=survey.stacks[-1])
    return sorted(places, key=lambda place: (float(shares[place]), place))


def at_random(places: Sequence[Place], seed: int) -> list[list[Place]]:
    orders = []
    for number in range(RANDOM_ORDERS):
        order = list(places)
        random.Random(f"{seed} {number}").shuffle(order)
        orders.append(order)
    return orders


def together(prompts: Prompts) -> Batches:
    """Return batches of prompts, those of one length in one batch."""
    lengths = sorted({len(ids) for ids in prompts})
    return Batches.of([{"input_ids": torch.stack([ids for ids in prompts if len(ids) == n])} for n in lengths])


def effect_text(text: Batches, heads: int, affordable: int, wanted: int, loaded: Loaded) -> Batches:
    """Return the text on which effects are measured.

    Each head is taken out up to `PASSES` + 1 times. All this reads `affordable` tokens or fewer: whole sequences if
    that gives more than `wanted` of them, else the beginnings of `wanted` sequences, of `PROMPT_TOKENS` or more.
    """
    tokens = affordable // ((PASSES + 1) * heads)
    longest = max(batch.inputs["input_ids"].shape[1] for batch in text)
    if tokens // longest >= wanted:
        return together(beginnings(text, tokens // longest, loaded, longest))
    return together(beginnings(text, wanted, loaded, max(PROMPT_TOKENS, tokens // wanted)))


def beginnings(text: Batches, wanted: int, loaded: Loaded, tokens: int = PROMPT_TOKENS) -> Prompts:
    """Return the first tokens of sequences, from as many documents as possible."""
    device = precision_and_place(loaded.model)[1]
    found: dict[int, Tensor] = {}
    for batch in text:
        for row, ids in enumerate(batch.inputs["input_ids"]):
            real = ids if batch.mask is None else ids[batch.mask[row]]
            if len(real) > 2:
                found[batch.samples[row]] = real[:tokens].to(device)
    if not found:
        raise RefusalError(
            "The training half has no sequence of three tokens or more to value heads on: give more text."
        )
    return [found[number] for number in in_turns(text) if number in found][:wanted]
