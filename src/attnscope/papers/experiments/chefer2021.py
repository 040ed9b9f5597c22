"""Generic attention-model explainability: relevance through attention, on a toy with a known answer (2103.15679).

The relevance R of one answer starts as R = I and is updated in every block by R <- R + Abar R, where Abar is the mean
over heads of (dA * A)^+, A is the attention map and dA its gradient. The row of the answering token says which tokens
decided. In the toy (`papers/trials/deciding_token.py`) one token decides the class, so the right explanation is known.
We test the rules themselves (R >= 0; R = I where no gradient is positive; R = I + Abar with one block), computed from
maps and by products that need no map; whether the deciding token ranks first; and how the answer changes while tokens
are removed, most relevant first (positive), least relevant first (negative) or at random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment
from attnscope.explanations.relevance import relevance
from attnscope.matrix.relevance import AttentionCall
from attnscope.matrix.scores import Scores
from attnscope.papers.trials.curves import Rows, gather
from attnscope.papers.trials.deciding_token import METHODS, STACK, Toy, accuracy, perturb, trace, trained

PAPER = "2103.15679"


@dataclass(frozen=True)
class Params:
    classes: int = 3
    words: int = 20
    tokens: int = 12
    layers: int = 2
    steps: int = 300
    texts: int = 40

    @property
    def toy(self) -> Toy:
        return Toy(self.classes, self.words, self.tokens)


FULL = replace(Params(), classes=5, words=60, tokens=32, layers=4, steps=1500, texts=200)


def without_support(seed: int) -> float:
    """Return the largest entry of R - I where no gradient is positive: values are >= 0 and output gradients <= 0."""
    rng = torch.Generator().manual_seed(seed)
    query, key, value, gradient = (torch.randn(1, 2, 6, 4, generator=rng, dtype=torch.float64) for _ in range(4))
    call = AttentionCall(STACK, STACK, 0, Scores(query, key, 0.5), value.abs(), -gradient.abs().transpose(1, 2))
    start = {STACK: torch.ones(6, dtype=torch.float64)}
    return float(relevance(calls=(call, call), start=start)[STACK].abs().max())


def rules(params: Params, seed: int, session: Session) -> dict[str, float]:
    """Compare relevance computed without maps with R computed from maps, for one block and for all blocks."""
    numbers = {"relevance_where_gradients_are_against": without_support(seed)}
    for layers, name in ((1, "one_layer"), (params.layers, "all_layers")):
        model, recording = trained(params.toy, layers, max(params.steps // 10, 1), seed, session)
        ids, _, classes = params.toy.texts(4, seed)
        least, apart = [], []
        for row, label in zip(ids, classes.tolist(), strict=True):
            traced = trace(model, recording, row, label)
            dense = traced.dense() if layers > 1 else torch.eye(len(row), dtype=torch.float64) + traced.abar()[0]
            own = torch.zeros(len(row), dtype=torch.float64)
            own[0] = 1  # the entry of R = I, which `relevance` leaves out
            apart.append(float((traced.row() + own - dense[0]).abs().max() / dense[0].abs().max()))
            least.append(min(float(dense.min()), float(traced.row().min())))  # computed from maps, and without them
        numbers |= {f"difference_from_maps_{name}": max(apart), f"least_relevance_{name}": min(least)}
    return numbers


def faithful(params: Params, seed: int, session: Session) -> dict[str, Any]:
    """Train the toy model, explain its answers, and measure how they change while tokens are removed."""
    model, recording = trained(params.toy, params.layers, params.steps, seed, session)
    ids, places, classes = params.toy.texts(params.texts, 10_000 + seed)
    first = dict.fromkeys(METHODS, 0)
    perturbations: dict[str, list[Any]] = {name: [] for name in (*METHODS, "random")}
    for number, (row, deciding, label) in enumerate(zip(ids, places.tolist(), classes.tolist(), strict=True)):
        session.advance("texts", number, params.texts)
        traced = trace(model, recording, row, label)
        for name, some in perturbations.items():
            scores = traced.row(name) if name in METHODS else None
            if scores is not None:
                first[name] += int(scores[1:].argmax()) + 1 == deciding
            some.append(perturb(model, row, label, scores, number))
    area = {
        name: [sum(getattr(p, side) for p in some) / len(some) for side in ("positive", "negative")]
        for name, some in perturbations.items()
    }
    curves = {
        f"{name}, {words} first": [
            sum(step) / len(some) for step in zip(*(getattr(p, side) for p in some), strict=True)
        ]
        for name, some in perturbations.items()
        for side, words in (("falling", "most"), ("staying", "least"))
    }
    at_random = sum(area["random"]) / 2
    positive, negative = area["relevance"]
    numbers = {
        "accuracy": accuracy(model, params.toy, 20_000 + seed),
        "deciding_token_first": first["relevance"] / params.texts,
        "random_over_positive_area": at_random - positive,
        "negative_over_random_area": negative - at_random,
    }
    for name, key in (("rollout", "rollout"), ("raw attention", "raw_attention")):
        gap = area[name][1] - area[name][0]
        numbers[f"gap_over_{key}"] = (negative - positive) - gap
        numbers[f"deciding_token_first_by_{key}"] = first[name] / params.texts
    return {"seed": seed, "numbers": numbers, "curves": curves}


def figure(trainings: Rows) -> Figure:
    points = []
    for name, steps in trainings[0]["curves"].items():
        method, _, side = name.rpartition(", ")
        for step in range(len(steps)):
            values = [one["curves"][name][step] for one in trainings]
            removed = 100 * step / (len(steps) - 1)
            panel = f"{side.removesuffix(' first')} important first"
            points.append(Point.over(values, removed, method, panel, dashed=method == "random"))
    caption = "Remaining share of the answer's probability, mean over texts; median and range over seeds."
    title, x = "The answer while tokens are removed", "% of tokens removed"
    return Figure("perturbation", title, caption, x, "share left", tuple(points))


CLAIMS = claims(
    PAPER,
    """
    one_layer: With one block, relevance is R = I + Abar.
        expected: equal without maps and from maps, to 1e-10 of the largest entry in float64
        holds: difference_from_maps_one_layer <= 1e-10; fails: difference_from_maps_one_layer >= 1e-3
    layers_add_up: Through several blocks R <- R + Abar R; one row of R needs no map (our derivation).
        expected: equal without maps and from maps, to 1e-10 of the largest entry in float64
        holds: difference_from_maps_all_layers <= 1e-10; fails: difference_from_maps_all_layers >= 1e-3
    never_negative: Relevance is never negative.
        expected: no entry of R below 0
        holds: least_relevance_one_layer >= 0, least_relevance_all_layers >= 0; fails: least_relevance_all_layers < 0
    identity_without_support: Where no gradient is positive, R stays the identity.
        expected: exactly 0 for every other token
        holds: relevance_where_gradients_are_against <= 0; fails: relevance_where_gradients_are_against > 0
    deciding_token_comes_first: Where one token decides, it has the most relevance.
        expected: in at least .9 of texts; contradicted at .2, little more than guessing
        holds: deciding_token_first >= 0.9; fails: deciding_token_first <= 0.2; given: accuracy >= 0.95
    areas_stand_in_order: Removing relevant tokens spoils the answer sooner than chance; removing others, later.
        expected: areas: positive below random below negative, each by .05
        holds: random_over_positive_area >= 0.05, negative_over_random_area >= 0.05
        fails: random_over_positive_area <= 0, negative_over_random_area <= 0; given: accuracy >= 0.95
    """,
    *(
        f"""
        more_faithful_than_{key}: Relevance is more faithful than {words}.
            expected: the gap between negative and positive area is wider by .05; contradicted if narrower by .05
            holds: gap_over_{key} >= 0.05; fails: gap_over_{key} <= -0.05; given: accuracy >= 0.95
        """
        for key, words in (("rollout", "attention rollout"), ("raw_attention", "raw attention"))
    ),
)


@experiment(
    title="Relevance through attention, where one token decides",
    paper=PAPER,
    summary="Attention times its gradient through all blocks: its rules, and whether it finds the deciding token.",
    advice=(
        "Use relevance to rank tokens, not to name one: removing tokens in its order spoiled answers far sooner than "
        "chance in every seed, but the deciding token ranked first in only two texts of three. On this toy plain "
        "rollout did at least as well, so run `attnscope explain --evaluate` to see which method is faithful on your "
        "model. Relevance costs one backward pass and no attention map, so long texts are no obstacle."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "30 s", "paper": "8 min"},
    seeds={"quick": 3, "paper": 3},
    claims=CLAIMS,
)
def chefer2021(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    exact = [session.part(f"rules-{seed}", partial(rules, params, seed, session)) for seed in seeds]
    trainings = [session.part(f"faithful-{seed}", partial(faithful, params, seed, session)) for seed in seeds]
    measured = gather({**one, **other["numbers"]} for one, other in zip(exact, trainings, strict=True))
    records = [{"seed": seed, **one} for seed, one in zip(seeds, exact, strict=True)]
    records += [{"seed": one["seed"], **one["numbers"]} for one in trainings]
    return Result(measured, tuple(records), (figure(trainings),))
