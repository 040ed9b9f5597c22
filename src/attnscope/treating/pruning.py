"""Heads taken out in the order of what they are worth, and what that costs beside other orders.

Three orders, least first:

    value          the exact Shapley value of a head (`attnscope paths`, arXiv:2103.03404's paths as players), summed over
                   prompts from the training half: what it adds to the logit of the token that really comes next, less
                   that of the strongest other one
    contribution   its share of what its layer writes (the measure head_contribution), over the held-in survey
    random         several orders drawn at random, as the floor

A head with a negative value speaks against what comes next, so it goes first. Loss is held-out, and is asked at a few
numbers of heads; the values were never computed on held-out text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from attnscope.core.errors import RefusalError
from attnscope.core.words import count
from attnscope.decomposing.paths import paths
from attnscope.hf.anatomy.anatomy import Site, anatomy
from attnscope.hf.editing.pruning import prunable, without_heads
from attnscope.hf.exchanging.saving import save_plain
from attnscope.hf.loading.given import loaded_for
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import precision_and_place
from attnscope.hf.loading.options import Loading
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.records.treatment import Order, Pruning
from attnscope.scanning.scan import scan
from attnscope.treating.arms import held_out_losses, looked_at
from attnscope.treating.trial import Result, Trial

PROMPTS = 8
PROMPT_TOKENS = 32
POINTS = 10  # numbers of heads at which the loss is asked
RANDOM_ORDERS = 3
SHARE = 0.1  # of the heads, where nobody says how many

Place = tuple[int, int]


def pruned(trial: Trial, heads: int | None, keep_loss: float | None) -> Result:
    """The curves of all orders, and the model without `heads` heads, or as many as keep the loss within `keep_loss`."""
    loaded = trial.losing.loaded
    if trial.losing.given is not None or loaded.kind != "causal":
        raise RefusalError(
            f"Heads are valued by the token that comes next, and {loaded.name} ({loaded.class_name}) does not read one "
            "way: choose a causal language model."
        )
    first = trial.text.held_out.batches[0].to(precision_and_place(loaded.model)[1])
    sites = prunable(loaded.model, anatomy(loaded.model, first.inputs))
    places = [(block, head) for block, site in sorted(sites.items()) for head in range(site.heads)]
    if heads is not None and heads > len(places):
        raise RefusalError(f"{loaded.name} has {count(len(places), 'head')}: {heads} cannot be taken out of it.")
    orders = {
        "value": ("Shapley value", [_by_value(trial, places)]),
        "contribution": ("share of what the layer writes", [_by_contribution(trial, places)]),
        "random": ("at random", _at_random(places, trial.sampling.seed)),
    }
    counts = _counts(len(places), heads)
    drawn = []
    for name, (title, several) in orders.items():
        losses = [_losses(trial, sites, order, counts, title) for order in several]
        mean = tuple(float(np.mean(column)) for column in zip(*losses, strict=True))
        ends = (tuple(map(min, zip(*losses, strict=True))), tuple(map(max, zip(*losses, strict=True))))
        low, high = ends if len(several) > 1 else ((), ())
        drawn.append(Order(name, title, tuple(several[0]), mean, low, high))
    by = drawn[0]
    removed = heads or _allowed(by, counts, keep_loss) or 0
    asked = (
        count(heads, "head") if heads else f"loss within {keep_loss:g}" if keep_loss is not None else "a tenth of them"
    )
    if heads is None and keep_loss is None:
        removed = max(1, round(SHARE * len(places)))
    chosen = replace(trial.chosen, layers=tuple(sorted({block for block, _ in by.heads[:removed]})))
    with without_heads(loaded.model, sites, by.heads[:removed]):
        treated = looked_at(
            trial.losing, trial.text.held_out, "the pruned model", trial.progress, title=f" without {removed} heads"
        )
        if trial.save is not None:
            save_plain(loaded.model, trial.save, tokenizer=loaded.tokenizer)
    pruning = Pruning(counts, tuple(drawn), removed, by.name, len(places), PROMPTS, asked)
    return Result(chosen, treated, pruning=pruning)


def _by_value(trial: Trial, places: Sequence[Place]) -> list[Place]:
    """By the summed Shapley value over prompts."""
    wide = _in_float64(trial.losing.loaded)
    worth = dict.fromkeys(places, 0.0)
    prompts = _prompts(trial)
    for number, (ids, follows, other) in enumerate(prompts):
        trial.progress("values of heads", number, len(prompts))
        found = paths(wide, {"input_ids": ids[None]}, target=follows, against=other, top=0, draws=0)
        for block, head in places:
            worth[block, head] += found.head_values[block][head]
    return sorted(places, key=lambda place: (worth[place], place))


def _prompts(trial: Trial) -> list[tuple[torch.Tensor, int, int]]:
    """Beginnings of training sequences, the token that follows, and the strongest other one."""
    model = trial.losing.loaded.model
    place = precision_and_place(model)[1]
    found = []
    rows = (row for batch in trial.text.training for row in _rows(batch))
    for row in rows:
        length = min(PROMPT_TOKENS, len(row) - 1)
        if length < 2:
            continue
        with without_gradients():
            logits = model(input_ids=row[None, :length].to(place)).logits[0, -1].float()
        follows = int(row[length])
        logits[follows] = -torch.inf
        found.append((row[:length], follows, int(logits.argmax())))
        if len(found) == PROMPTS:
            break
    if not found:
        raise RefusalError("The training half has no sequence of three tokens to value heads on: give more text.")
    return found


def _rows(batch: object) -> list[torch.Tensor]:
    ids, mask = batch.inputs["input_ids"], batch.mask  # type: ignore[attr-defined]
    return [row if mask is None else row[mask[number]] for number, row in enumerate(ids)]


def _by_contribution(trial: Trial, places: Sequence[Place]) -> list[Place]:
    """By the mean share of what the layer writes, on training text."""
    few = replace(trial.text.training, batches=trial.text.training.batches[:PROMPTS])
    survey = scan(trial.losing.loaded, few, measures=["head_contribution"], keep_text=False)
    shares = survey.values("head_contribution", stack=survey.stacks[-1])
    return sorted(places, key=lambda place: (float(shares[place]), place))


def _at_random(places: Sequence[Place], seed: int) -> list[list[Place]]:
    orders = []
    for number in range(RANDOM_ORDERS):
        order = list(places)
        random.Random(f"{seed} {number}").shuffle(order)
        orders.append(order)
    return orders


def _counts(total: int, heads: int | None) -> tuple[int, ...]:
    """Evenly spread numbers of heads, with the one that was asked for; never all of them but one end."""
    spread = {round(total * share / POINTS) for share in range(POINTS)}
    return tuple(sorted(spread | ({heads} if heads else set()) | {max(1, round(SHARE * total))}))


def _losses(
    trial: Trial, sites: dict[int, Site], order: Sequence[Place], counts: Sequence[int], title: str
) -> tuple[float, ...]:
    losses = []
    for number, removed in enumerate(counts):
        trial.progress(f"loss without heads, {title}", number, len(counts))
        with without_heads(trial.losing.loaded.model, sites, order[:removed]):
            each = held_out_losses(trial.losing, trial.text.held_out)
        losses.append(sum(each) / len(each))
    return tuple(losses)


def _allowed(by: Order, counts: Sequence[int], keep_loss: float | None) -> int | None:
    """The most heads whose absence costs at most `keep_loss`, with every smaller number that was asked about."""
    if keep_loss is None:
        return None
    allowed = 0
    for removed, loss in zip(counts, by.losses, strict=True):
        if loss > by.losses[0] + keep_loss:
            break
        allowed = removed
    if not allowed:
        raise RefusalError(
            f"Taking out the {count(counts[1], 'head')} of least value already costs "
            f"{by.losses[1] - by.losses[0]:.3g} nats a token: allow more with --keep-loss, or name a number of heads."
        )
    return allowed


def _in_float64(loaded: Loaded) -> Loaded:
    return loaded_for(loaded, None, Loading(dtype="float64", device=str(precision_and_place(loaded.model)[1])))
