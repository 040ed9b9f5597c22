"""Remove heads, the least valuable first, and compare the loss in four orders of removal.

    value          the exact Shapley value of a head (`head_values`), summed over prompts from the training half: what
                   it adds to the log-probability of the next tokens
    size           the absolute value in each prompt, summed, so that positive and negative prompts do not cancel
    contribution   the share of what its block writes (the measure head_contribution), on the same prompts
    random         several random orders, for comparison

By value, a head that lowers the probability of the next token is removed first, although it may raise it on other text.
Values and shares come from the same tokens of the training half, so all orders use the same information. Losses are
measured on held-out text, for a few numbers of removed heads. The number of heads that `keep_loss` allows is chosen on
the training half, never on the text that is reported.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from attnscope.commands.paths.removals import head_values
from attnscope.commands.scan.run import scan
from attnscope.commands.treat.arms import Trial, TrialResult, sequence_losses
from attnscope.commands.treat.halves import GivenLoss
from attnscope.commands.treat.record import Order, Pruning
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.words import count
from attnscope.data.batches import Batches
from attnscope.hf.anatomy.anatomy import Anatomy, Site, anatomy
from attnscope.hf.editing.surgery import prunable, without_heads
from attnscope.hf.exchanging.call import recipe_of
from attnscope.hf.installed import save_plain, save_treated
from attnscope.hf.loading.load import Loaded, precision_and_place

PROMPTS = 8
PROMPT_TOKENS = 32
POINTS = 10  # numbers of heads at which the loss is measured
RANDOM_ORDERS = 3
SETTINGS = ("by", "prompts")
ORDERS = ("size", "value", "contribution", "random")  # the first is the default
SHARE = 0.1  # share of heads that is removed by default

Place = tuple[int, int]


def pruned(trial: Trial, heads: int | None, keep_loss: float | None) -> TrialResult:
    """Measure the losses of all orders, and the model without `heads` heads (or as many as `keep_loss` allows)."""
    loaded = trial.loss.loaded
    order_name = str(trial.chosen.settings.get("by", ORDERS[0]))
    few = replace(trial.text.training, batches=trial.text.training.batches[: len(trial.text.held_out)])
    refuse_what_has_no_next_token(loaded, trial.loss.given)
    first = trial.text.held_out.batches[0].to(precision_and_place(loaded.model)[1])
    structure = anatomy(loaded.model, first.inputs)
    sites = prunable(loaded.model, structure)
    places = [(block, head) for block, site in sorted(sites.items()) for head in range(site.heads)]
    prompts = _prompts(trial)
    by_value, by_size = _by_value(trial, structure, places, prompts)
    orders = {
        "value": ("Shapley value", [by_value]),
        "size": ("size of Shapley value", [by_size]),
        "contribution": ("share of what the block writes", [_by_contribution(trial, places, prompts)]),
        "random": ("at random", _at_random(places, trial.sampling.seed)),
    }
    counts = _counts(len(places), heads)
    drawn = []
    for name, (title, several) in orders.items():
        losses = [_losses(trial, sites, order, counts, title, trial.text.held_out) for order in several]
        mean = tuple(float(np.mean(column)) for column in zip(*losses, strict=True))
        ends = (tuple(map(min, zip(*losses, strict=True))), tuple(map(max, zip(*losses, strict=True))))
        low, high = ends if len(several) > 1 else ((), ())
        drawn.append(Order(name, title, tuple(several[0]), mean, low, high))
    by = next(order for order in drawn if order.name == order_name)
    removed = heads or 0
    if keep_loss is not None:
        removed = _allowed(counts, _losses(trial, sites, by.heads, counts, "on training text", few), keep_loss)
    request = (
        count(heads, "head") if heads else f"loss within {keep_loss:g}" if keep_loss is not None else "a tenth of them"
    )
    if heads is None and keep_loss is None:
        removed = max(1, round(SHARE * len(places)))
    chosen = replace(trial.chosen, layers=tuple(sorted({block for block, _ in by.heads[:removed]})))
    with without_heads(loaded.model, sites, by.heads[:removed]):
        treated = trial.measured("the pruned model", f" without {removed} heads")
        if trial.save is not None:
            # A model that was treated before must keep its installed variant in the folder.
            saved = save_plain if recipe_of(loaded.model) is None else save_treated
            saved(loaded.model, trial.save, tokenizer=loaded.tokenizer)
    pruning = Pruning(counts, tuple(drawn), removed, by.name, len(places), len(prompts), request)
    return TrialResult(chosen, treated, pruning=pruning)


def refuse_what_has_no_next_token(loaded: Loaded, given: GivenLoss | None) -> None:
    if given is not None or loaded.kind != "causal":
        raise RefusalError(
            f"Heads are valued by the next token, which {loaded.name} ({loaded.class_name}) does not predict: choose a "
            "causal language model."
        )


def refuse_odd_settings(settings: Mapping[str, Any]) -> None:
    """Refuse unusable settings. `by` is the order of removal, `prompts` the number of texts used to value heads."""
    if unknown := [name for name in settings if name not in SETTINGS]:
        raise RefusalError(f"prune has no setting '{unknown[0]}'.{nearest(unknown[0], SETTINGS)}")
    asked = settings.get("by", ORDERS[0])
    if asked not in ORDERS:
        raise RefusalError(f"Heads cannot be ordered by '{asked}'.{nearest(str(asked), ORDERS)}")
    wanted = settings.get("prompts", PROMPTS)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise RefusalError(
            f"Heads cannot be valued on {wanted} prompts: give the setting `prompts` a whole number above 0."
        )


def _by_value(
    trial: Trial, structure: Anatomy, places: Sequence[Place], prompts: Sequence[Tensor]
) -> tuple[list[Place], list[Place]]:
    """Return the heads ordered by Shapley value, summed over prompts, and ordered by its size."""
    worth, size = dict.fromkeys(places, 0.0), dict.fromkeys(places, 0.0)
    for number, ids in enumerate(prompts):
        trial.progress("values of heads", number, len(prompts))
        values = head_values(trial.loss.loaded, ids, structure)
        for place in places:
            worth[place] += float(values[place])
            size[place] += abs(float(values[place]))
    ordered = [sorted(places, key=lambda place, by=by: (by[place], place)) for by in (worth, size)]  # type: ignore[misc]
    return ordered[0], ordered[1]


def _prompts(trial: Trial) -> list[Int[Tensor, " token"]]:
    """Return the beginnings of training sequences, as many as the setting `prompts` says."""
    wanted = int(trial.chosen.settings.get("prompts", PROMPTS))
    device = precision_and_place(trial.loss.loaded.model)[1]
    prompts: list[Tensor] = []
    for batch in trial.text.training:
        for number, row in enumerate(batch.inputs["input_ids"]):
            real = row if batch.mask is None else row[batch.mask[number]]
            if len(real) > 2 and len(prompts) < wanted:
                prompts.append(real[:PROMPT_TOKENS].to(device))
    if not prompts:
        raise RefusalError(
            "The training half has no sequence of three tokens or more to value heads on: give more text."
        )
    return prompts


def _by_contribution(trial: Trial, places: Sequence[Place], prompts: Sequence[Tensor]) -> list[Place]:
    """Return the heads ordered by their mean share of what the block writes, on the same prompts."""
    ready = Batches.of([{"input_ids": ids[None]} for ids in prompts])
    survey = scan(trial.loss.loaded, ready, measures=["head_contribution"], keep_text=False)
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
    """Return evenly spaced numbers of heads to remove, plus the requested number and the default; never all heads."""
    spread = {round(total * share / POINTS) for share in range(POINTS)}
    return tuple(sorted(spread | ({heads} if heads else set()) | {max(1, round(SHARE * total))}))


def _losses(
    trial: Trial, sites: dict[int, Site], order: Sequence[Place], counts: Sequence[int], title: str, text: Batches
) -> tuple[float, ...]:
    losses = []
    for number, removed in enumerate(counts):
        trial.progress(f"loss without heads, {title}", number, len(counts))
        with without_heads(trial.loss.loaded.model, sites, order[:removed]):
            each = sequence_losses(trial.loss, text)
        losses.append(sum(each) / len(each))
    return tuple(losses)


def _allowed(counts: Sequence[int], losses: Sequence[float], keep_loss: float) -> int:
    """Return the largest number of heads whose removal costs at most `keep_loss`, as all smaller numbers do."""
    allowed = 0
    for removed, loss in zip(counts, losses, strict=True):
        if loss > losses[0] + keep_loss:
            break
        allowed = removed
    if not allowed:
        raise RefusalError(
            f"Removing the {count(counts[1], 'head')} of least value already costs {losses[1] - losses[0]:.3g} nats "
            "per token: allow more with `keep_loss=`, or give a number of heads with `heads=`."
        )
    return allowed
