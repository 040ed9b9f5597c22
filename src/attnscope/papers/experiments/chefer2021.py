"""Generic attention-model explainability: relevance through attention, where the answer is known (arXiv:2103.15679).

Relevance of one answer: Abar = mean over heads of (dA * A)^+, R = I, R <- R + Abar R with every layer; the row of the
token that is asked says which tokens decided. Here that is known: in a planted toy one token decides the class.
Measured: what the rules themselves say (R >= 0; R = I where gradients speak against; R = I + Abar of one layer), from
maps and by the products that need none; whether the deciding token comes first; and what becomes of the answer while
tokens go, those of most relevance first (positive), of least first (negative), or in random order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment
from attnscope.explanations.relevance import relevance
from attnscope.matrix.relevance import AttentionCall
from attnscope.matrix.scores import Scores
from attnscope.papers.trials.deciding_token import METHODS, STACK, Toy, accuracy, areas, looked, trained

PAPER = "2103.15679"
APART = 0.05  # of an area, which is at most 1


@dataclass(frozen=True)
class Params:
    classes: int = 3
    words: int = 20
    tokens: int = 12
    layers: int = 2
    steps: int = 300
    texts: int = 40


FULL = replace(Params(), classes=5, words=60, tokens=32, layers=4, steps=1500, texts=200)


def against(seed: int) -> float:
    """The largest entry of R - I where no gradient speaks for the answer: values >= 0, gradients behind them <= 0."""
    rng = torch.Generator().manual_seed(seed)
    query, key, value, gradient = (torch.randn(1, 2, 6, 4, generator=rng, dtype=torch.float64) for _ in range(4))
    call = AttentionCall(STACK, STACK, 0, Scores(query, key, 0.5), value.abs(), -gradient.abs().transpose(1, 2))
    start = {STACK: torch.ones(6, dtype=torch.float64)}
    return float(relevance(calls=(call, call), start=start)[STACK].abs().max())


def rules(params: Params, seed: int, session: Session) -> dict[str, float]:
    """What the rules say of models of one layer and of all: relevance without maps beside R from maps."""
    toy = Toy(params.classes, params.words, params.tokens)
    found = {"relevance_where_gradients_are_against": against(seed)}
    for layers, name in ((1, "one_layer"), (params.layers, "all_layers")):
        model, recording = trained(toy, layers, max(params.steps // 10, 1), seed, session)
        ids, _, classes = toy.texts(4, seed)
        least, apart = [], []
        for row, label in zip(ids, classes.tolist(), strict=True):
            one = looked(model, recording, row, label)
            dense = one.dense() if layers > 1 else torch.eye(len(row), dtype=torch.float64) + one.abar()[0]
            own = torch.zeros(len(row), dtype=torch.float64)
            own[0] = 1  # the row's own token, which `relevance` leaves out
            apart.append(float((one.row() + own - dense[0]).abs().max() / dense[0].abs().max()))
            least.append(min(float(dense.min()), float(one.row().min())))  # from maps and without them
        found |= {f"difference_from_maps_{name}": max(apart), f"least_relevance_{name}": min(least)}
    return found


def faithful(params: Params, seed: int, session: Session) -> dict[str, Any]:
    """The toy trained, its texts explained, and the answers while tokens go."""
    toy = Toy(params.classes, params.words, params.tokens)
    model, recording = trained(toy, params.layers, params.steps, seed, session)
    ids, places, classes = toy.texts(params.texts, 10_000 + seed)
    first = dict.fromkeys(METHODS, 0)
    kept: dict[str, list[tuple[float, float]]] = {name: [] for name in (*METHODS, "random")}
    curves: dict[str, list[Any]] = {}
    for number, (row, place, label) in enumerate(zip(ids, places.tolist(), classes.tolist(), strict=True)):
        session.advance("texts", number, params.texts)
        one = looked(model, recording, row, label)
        for name in (*METHODS, "random"):
            scores = one.row(name) if name in METHODS else None
            if scores is not None:
                first[name] += int(scores[1:].argmax()) + 1 == place
            found = areas(model, row, label, scores, number)
            kept[name].append((found.positive, found.negative))
            curves.setdefault(name, []).append((found.falling, found.staying))
    mean = {name: [sum(side) / len(some) for side in zip(*some, strict=True)] for name, some in kept.items()}
    shown = {
        f"{name}, {words} first": [sum(step) / len(some) for step in zip(*(one[side] for one in some), strict=True)]
        for name, some in curves.items()
        for side, words in ((0, "most"), (1, "least"))
    }
    at_random = sum(mean["random"]) / 2
    positive, negative = mean["relevance"]
    numbers = {
        "accuracy": accuracy(model, toy, 20_000 + seed),
        "deciding_token_first": first["relevance"] / params.texts,
        "random_over_positive_area": at_random - positive,
        "negative_over_random_area": negative - at_random,
    }
    for name, key in (("rollout", "rollout"), ("raw attention", "raw_attention")):
        gap = mean[name][1] - mean[name][0]
        numbers[f"gap_over_{key}"] = (negative - positive) - gap
        numbers[f"deciding_token_first_by_{key}"] = first[name] / params.texts
    return {"seed": seed, "numbers": numbers, "curves": shown}


def figure(found: Sequence[Mapping[str, Any]]) -> Figure:
    rows = []
    for name, steps in found[0]["curves"].items():
        method, _, side = name.rpartition(", ")
        for step in range(len(steps)):
            values = [one["curves"][name][step] for one in found]
            gone = 100 * step / (len(steps) - 1)
            panel = f"{side.removesuffix(' first')} important first"
            rows.append(Point.over(values, gone, method, panel, dashed=method == "random"))
    caption = "Share of the answer's probability that is left, mean over texts; median and range over seeds."
    return Figure("perturbation", "The answer while tokens go", caption, "% of tokens gone", "share left", tuple(rows))


KNOWS = (Bound("accuracy", ">=", 0.95),)
CLAIMS = (
    Claim(
        "one_layer",
        PAPER,
        "Of one layer, relevance is R = I + Abar.",
        "without maps as from maps, to 1e-10 of the largest entry in float64",
        holds=(Bound("difference_from_maps_one_layer", "<=", 1e-10),),
        fails=(Bound("difference_from_maps_one_layer", ">=", 1e-3),),
    ),
    Claim(
        "layers_add_up",
        PAPER,
        "Through layers R <- R + Abar R, of which one row can be had without any map (the row is our derivation).",
        "without maps as from maps, to 1e-10 of the largest entry in float64",
        holds=(Bound("difference_from_maps_all_layers", "<=", 1e-10),),
        fails=(Bound("difference_from_maps_all_layers", ">=", 1e-3),),
    ),
    Claim(
        "never_negative",
        PAPER,
        "Relevance is never negative.",
        "no entry of R below 0",
        holds=(Bound("least_relevance_one_layer", ">=", 0.0), Bound("least_relevance_all_layers", ">=", 0.0)),
        fails=(Bound("least_relevance_all_layers", "<", 0.0),),
    ),
    Claim(
        "identity_without_support",
        PAPER,
        "Where gradients are nowhere positive, R stays the identity.",
        "nothing beside the token itself, exactly",
        holds=(Bound("relevance_where_gradients_are_against", "<=", 0.0),),
        fails=(Bound("relevance_where_gradients_are_against", ">", 0.0),),
    ),
    Claim(
        "deciding_token_comes_first",
        PAPER,
        "Where one token decides, it has the most relevance.",
        "in at least .9 of texts; contradicted at .2, little more than guessing",
        holds=(Bound("deciding_token_first", ">=", 0.9),),
        fails=(Bound("deciding_token_first", "<=", 0.2),),
        given=KNOWS,
    ),
    Claim(
        "areas_stand_in_order",
        PAPER,
        "Taking away what is relevant ruins the answer sooner than chance, and what is not, later.",
        "areas: positive below random below negative, each by .05",
        holds=(Bound("random_over_positive_area", ">=", APART), Bound("negative_over_random_area", ">=", APART)),
        fails=(Bound("random_over_positive_area", "<=", 0.0), Bound("negative_over_random_area", "<=", 0.0)),
        given=KNOWS,
    ),
    *(
        Claim(
            f"more_faithful_than_{key}",
            PAPER,
            f"Relevance is more faithful than {words}.",
            "the gap between negative and positive area is wider by .05; contradicted where it is narrower by as much",
            holds=(Bound(f"gap_over_{key}", ">=", APART),),
            fails=(Bound(f"gap_over_{key}", "<=", -APART),),
            given=KNOWS,
        )
        for key, words in (("rollout", "attention rollout"), ("raw_attention", "raw attention"))
    ),
)


@experiment(
    title="Relevance through attention, where one token decides",
    paper=PAPER,
    summary="Attention weighed by its gradient through all layers: its rules, and whether it names what decided.",
    advice=(
        "Use relevance to rank tokens, not to name one: taking tokens away in its order ruined answers far sooner "
        "than chance in every seed, but the token that decided came first in two texts of three only. On this toy "
        "plain rollout did at least as well, so let `attnscope explain --evaluate` say which method is faithful on "
        "your model before you believe any. It costs one backward pass and no attention map, so length is no reason"
        " to do without it."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "30 s", "paper": "8 min"},
    seeds={"quick": 3, "paper": 3},
    claims=CLAIMS,
)
def chefer2021(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    exact = [{"seed": seed, **session.part(f"rules-{seed}", partial(rules, params, seed, session))} for seed in seeds]
    found = [session.part(f"faithful-{seed}", partial(faithful, params, seed, session)) for seed in seeds]
    measured: dict[str, list[float]] = {}
    for one, other in zip(exact, found, strict=True):
        for name, value in {**{k: v for k, v in one.items() if k != "seed"}, **other["numbers"]}.items():
            measured.setdefault(name, []).append(value)
    records = (*exact, *({"seed": one["seed"], **one["numbers"]} for one in found))
    return Result(measured, records, (figure(found),))
