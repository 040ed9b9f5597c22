"""Find heads that can go: choose them on one text, check the number on a second, and judge it on a third.

    choosing    several orders of removal (`head_orders.py`). The best one is the order that allows most heads within
                the budget or, for a given number of heads, costs least
    checking    the number of heads is lowered along that order until the budget is kept with a margin (`step_back`)
    held out    everything that is reported

The three texts share no document. The held-out text decides nothing, so the cost that is reported is not flattered by
the choice. Without `heads` and `keep_loss` the budget is `FREE`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from attnscope.commands.treat.arms import Trial, TrialResult
from attnscope.commands.treat.halves import GivenLoss, two_parts
from attnscope.commands.treat.head_orders import (
    RANDOM_ORDERS,
    at_random,
    beginnings,
    by_contribution,
    by_effect,
    by_value,
    effect_text,
    together,
)
from attnscope.commands.treat.pruning_record import FREE, Cost, HeadCost, Order, Pruning
from attnscope.commands.treat.removal_losses import Place, RemovalLosses, losses_without_heads
from attnscope.commands.treat.trained import Kept
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.progress import Advance
from attnscope.core.words import count
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import prunable, without_heads
from attnscope.hf.exchanging.call import recipe_of
from attnscope.hf.installed import save_plain, save_treated
from attnscope.hf.loading.load import Loaded, precision_and_place
from attnscope.stats.intervals import Interval

PROMPTS = 8
POINTS = 10  # numbers of heads at which the loss is measured
SETTINGS = ("by", "prompts")
TITLES = {
    "effect": "effect of removal",
    "size": "size of Shapley value",
    "value": "Shapley value",
    "contribution": "share of what the block writes",
    "random": "at random",
}
ORDERS = ("best", *TITLES)  # the first is the default
PARTNERED, CANDIDATES = 3, 16  # heads whose partner is searched for, and removed heads that are tried for each


def pruned(trial: Trial, heads: int | None, keep_loss: float | None, kept: Kept | None = None) -> TrialResult:
    """Choose heads, take them out, and measure the model without them."""
    loaded, progress = trial.loss.loaded, trial.progress
    refuse_what_has_no_next_token(loaded, trial.loss.given)
    first = trial.text.held_out.batches[0].to(precision_and_place(loaded.model)[1])
    structure = anatomy(loaded.model, first.inputs)
    sites = prunable(loaded.model, structure)
    places = [(block, head) for block, site in sorted(sites.items()) for head in range(site.heads)]
    choosing, checking = two_parts(trial.text.training, trial.text.held_out.samples)
    prompts = beginnings(choosing, int(trial.chosen.settings.get("prompts", PROMPTS)), loaded)
    counts = _counts(len(places), None)
    affordable = len(counts) * (len(TITLES) - 1 + RANDOM_ORDERS) * trial.text.held_out.tokens  # as the curves read
    measured = effect_text(choosing, len(places), affordable, len(prompts), loaded)
    texts = {"effects": measured, "choosing": choosing, "checking": checking, "held out": trial.text.held_out}
    budget = math.nan if heads is not None else FREE if keep_loss is None else keep_loss
    plan = {"model": loaded.sha256, "sampling": asdict(trial.sampling)}
    folder, resume = (None, False) if kept is None else (kept.folder, kept.resume)
    with losses_without_heads(trial.loss, sites, texts, folder, resume, plan) as losses:
        value, size = by_value(losses, structure, places, prompts, progress)
        effects = by_effect(losses, places, len(places) if heads is None else heads, progress)
        orders = {
            "effect": [effects.order],
            "size": [size],
            "value": [value],
            "contribution": [by_contribution(loaded, places, together(prompts))],
            "random": at_random(places, trial.sampling.seed),
        }
        fits = _fits(losses, orders, counts, heads, budget, progress)
        by = str(trial.chosen.settings.get("by", ORDERS[0]))
        if by == "best":
            by = min((name for name in orders if name != "random"), key=lambda name: (-fits[name][0], fits[name][1]))
        order = orders[by][0]
        removed, checked = heads or 0, tuple[Cost, ...]()
        if not removed:
            removed, checked = step_back(losses, order, fits[by][0], budget, progress)
        out = order[:removed]
        counts = _counts(len(places), removed)
        drawn, curve = _held_out(losses, orders, by, counts, fits, progress)
        costs = _costs(losses, places, out, FREE if math.isnan(budget) else budget, progress)
        passes = losses.passes
    chosen = replace(trial.chosen, layers=tuple(sorted({block for block, _ in out})))
    with without_heads(loaded.model, sites, out):
        treated = trial.measured("the pruned model", f" without {count(removed, 'head')}")
        if trial.save is not None and out:
            # A model that was treated before must keep its installed variant in the folder.
            saved = save_plain if recipe_of(loaded.model) is None else save_treated
            saved(loaded.model, trial.save, tokenizer=loaded.tokenizer)
    asked = count(heads, "head") if heads else f"loss within {budget:g}"
    pruning = Pruning(
        counts=counts,
        orders=drawn,
        removed=removed,
        by=by,
        total=len(places),
        prompts=len(prompts),
        asked=asked,
        budget=budget,
        curve=curve,
        checked=checked,
        costs=costs,
        passes=passes,
        effect_sequences=measured.samples,
        effect_tokens=measured.tokens,
    )
    return TrialResult(chosen, treated, pruning=pruning)


def step_back(
    losses: RemovalLosses, order: Sequence[Place], start: int, budget: float, progress: Advance
) -> tuple[int, tuple[Cost, ...]]:
    """Return the largest number of heads, from `start` down, that keeps the budget on the checking text with a margin.

    The held-out text will judge by the upper end of its interval: m' + h' <= budget, with mean m' and half-width h'.
    Here m and h are known. m' differs from m by chance, about h at most (h is two standard errors, and m' - m has a
    standard error of sqrt 2 of them), and h' is close to h. So m + 2 h <= budget is asked for. At least one head is
    tried, so that a refusal has a number. Each step leaves out a tenth of the heads, and at least one.
    """
    tried = []
    removed = max(1, start)
    while removed:
        progress(f"checking {count(removed, 'head')}", 0, 0)
        rise = losses.change("checking", order[:removed])
        tried.append(_cost(removed, rise))
        if rise.mean + 2 * (rise.high - rise.mean) <= budget:
            break
        removed -= max(1, removed // 10)
    return removed, tuple(tried)


def _fits(
    losses: RemovalLosses,
    orders: Mapping[str, Sequence[Sequence[Place]]],
    counts: Sequence[int],
    heads: int | None,
    budget: float,
    progress: Advance,
) -> dict[str, tuple[int, float]]:
    """Return how many heads of each order the budget allows on the choosing text, and the loss without them."""
    found = {}
    for number, (name, several) in enumerate(orders.items()):
        progress("choosing the order", number, len(orders))
        order = several[0]
        removed = heads or _largest_within(losses, order, counts, budget)
        found[name] = (removed, losses.mean("choosing", order[:removed]))
    return found


def _largest_within(losses: RemovalLosses, order: Sequence[Place], counts: Sequence[int], budget: float) -> int:
    """Return the largest number of heads that costs at most the budget on the choosing text.

    The numbers of the curve are tried until two in a row cost more, then those between the last one that fits and the
    next by halving.
    """

    def within(removed: int) -> bool:
        return losses.change("choosing", order[:removed]).mean <= budget

    fitting, over, failed = 0, len(order), 0
    for removed in counts[1:]:
        if within(removed):
            fitting, over, failed = removed, len(order), 0
        else:
            over, failed = min(over, removed), failed + 1
            if failed == 2:
                break
    while over - fitting > 1:
        middle = (fitting + over) // 2
        fitting, over = (middle, over) if within(middle) else (fitting, middle)
    return fitting


def _held_out(
    losses: RemovalLosses,
    orders: Mapping[str, Sequence[Sequence[Place]]],
    by: str,
    counts: Sequence[int],
    fits: Mapping[str, tuple[int, float]],
    progress: Advance,
) -> tuple[tuple[Order, ...], tuple[Cost, ...]]:
    """Return the held-out losses of all orders, and the costs of the chosen one with intervals."""
    made: list[Order] = []
    done, total = 0, len(counts) * sum(map(len, orders.values()))
    for name, several in orders.items():
        columns = []
        for removed in counts:
            progress(f"held-out loss without heads, {TITLES[name]}", done, total)
            columns.append([losses.mean("held out", order[:removed]) for order in several])
            done += len(several)
        ends = (tuple(map(min, columns)), tuple(map(max, columns)))
        low, high = ends if len(several) > 1 else ((), ())
        mean = tuple(float(np.mean(column)) for column in columns)
        made.append(Order(name, TITLES[name], tuple(several[0]), mean, low, high, *fits[name]))
    chosen = orders[by][0]
    return tuple(made), tuple(_cost(n, losses.change("held out", chosen[:n])) for n in counts)


def _costs(
    losses: RemovalLosses, places: Sequence[Place], out: Sequence[Place], limit: float, progress: Advance
) -> tuple[HeadCost, ...]:
    """Return what every head costs alone and among the removed ones, and who backed up those that must stay."""
    costs: dict[Place, HeadCost] = {}
    for number, place in enumerate(places):
        progress("what each head costs beside those that went", number, len(places))
        others = [one for one in out if one != place]
        among = losses.change("effects", [*others, place], since=others)
        cost = _cost(1, among)
        alone = losses.change("effects", [place]).mean
        costs[place] = HeadCost(*place, alone, cost.rise, cost.low, cost.high)
    stays = [one for one in costs.values() if one.place not in out and one.backed_up(limit)]
    for one in sorted(stays, key=lambda one: one.alone - one.among)[:PARTNERED]:
        pairs: dict[Place, float] = {}
        for other in out[:CANDIDATES]:
            progress(f"which head backs up {one.block}.{one.head}", len(pairs), min(len(out), CANDIDATES))
            pairs[other] = losses.change("effects", [one.place, other]).mean
        partner = max(pairs, key=lambda other: pairs[other] - costs[other].alone)
        # More than half of what the head costs now must come from this partner: else several back it up.
        if pairs[partner] - costs[partner].alone - one.alone > (one.among - one.alone) / 2:
            costs[one.place] = replace(one, partner=partner, together=pairs[partner])
    return tuple(costs.values())


def _cost(removed: int, rise: Interval) -> Cost:
    known = math.isfinite(rise.low)
    return Cost(removed, rise.mean, rise.low if known else math.nan, rise.high if known else math.nan)


def _counts(total: int, removed: int | None) -> tuple[int, ...]:
    """Return evenly spaced numbers of heads, never all, and 1; with `removed` also that number and the next."""
    spread = {min(round(total * share / POINTS), total - 1) for share in range(POINTS)} | {1}
    return tuple(sorted(spread if removed is None else spread | {removed, min(removed + 1, total)}))


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
