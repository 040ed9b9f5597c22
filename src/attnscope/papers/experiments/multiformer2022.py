"""Multiformer: heads of different kinds in one layer, with the projections that they share (arXiv:2205.07100).

module     full heads are ordinary attention, a local head sees its window, a compressed one ceil(n/stride) anchors
writes     what heads write, and the bias, add up to what the module writes
learning   one kind in all heads beside a mix of four, trained alike on a task made like speech (`papers/trials/rank_one_heads.py`)
relevance  whether architectures whose heads contribute evenly do better, as the paper observes

What differs from the paper: a made-up task of noisy frames in the place of speech translation, accuracy in the place
of BLEU, two layers. The task's noise and size and the rate were set after a first run in which nothing learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment, median
from attnscope.papers.models.nano import Config
from attnscope.papers.trials.curves import by_seed
from attnscope.papers.trials.rank_one_heads import (
    ARCHITECTURES,
    CLASSES,
    algebra,
    contributions,
    frames_task,
    rank_correlation,
)
from attnscope.papers.trials.trained_alike import Core, Training, trained_alike
from attnscope.variants.mixed_heads import MULTIFORMER, mixed_heads

PAPER = "2205.07100"
SHORT = Training(steps=250, batch=32, rate=6e-3)
SAID = {
    "all_full_from_plain": "largest_difference_of_full_heads",
    "wide_local_from_full": "largest_difference_of_wide_window",
    "local_mass_outside": "mass_outside_window",
    "anchors_missing": "anchors_too_many_or_few",
    "anchor_rows_from_one": "anchor_rows_from_one",
}


@dataclass(frozen=True)
class Params:
    exact_tokens: int = 37  # no multiple of the stride
    segments: int = 6
    held: int = 4  # frames that a symbol lasts
    noise: float = 0.6
    layers: int = 2
    heads: int = 4
    width: int = 48
    data: tuple[int, int] = (2000, 200)
    window: int = 4
    stride: int = 4
    training: Training = SHORT


FULL = replace(Params(), segments=12, held=5, width=64, data=(10000, 500), training=Training(steps=1200, batch=32))


def learned(name: str, params: Params, seed: int, session: Session) -> dict[str, Any]:
    task = frames_task(*params.data, seed, segments=params.segments, held=params.held, noise=params.noise)
    config = Config(
        inputs=8,
        out=CLASSES,
        width=params.width,
        heads=params.heads,
        layers=params.layers,
        mlp=2 * params.width,
        max_tokens=params.segments * params.held,
    )
    kinds = ARCHITECTURES[name]
    settings: dict[str, Any] = {"kinds": kinds}
    settings |= {"local_window": params.window} if "local" in kinds else {}
    settings |= {"compressed_stride": params.stride} if "compressed" in kinds else {}
    return trained_alike(
        task,
        config,
        params.training,
        name,
        seed,
        session,
        core=lambda: Core(mixed_heads, config, **settings),
        also=contributions,
    )


def numbers_of(models: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the claims ask of one seed."""
    accuracy = {one["kind"]: one["accuracy"] for one in models}
    even = {one["kind"]: one["evenness"] for one in models}
    return {
        **{f"accuracy_of_{kind}": value for kind, value in accuracy.items()},
        **{f"evenness_of_{kind}": value for kind, value in even.items()},
        "mixed_over_full": accuracy["mixed"] - accuracy["full"],
        "full_over_guessing": accuracy["full"] - models[0]["best_guess"],
        "mixed_over_worst": accuracy["mixed"] - min(accuracy[kind] for kind in MULTIFORMER),
        "best_over_worst": max(accuracy[kind] for kind in MULTIFORMER) - min(accuracy[kind] for kind in MULTIFORMER),
        "rank_correlation_of_evenness_and_accuracy": rank_correlation(list(even.values()), list(accuracy.values())),
        "largest_difference_of_writes": max(one["writes_from_module"] for one in models),
    }


ALIKE = 0.899  # of five ranks the correlation is a multiple of .1, and rounded
LEARNED, DIFFER = Bound("full_over_guessing", ">=", 0.1), Bound("best_over_worst", ">=", 0.05)
CLAIMS = (
    Claim(
        "full_heads_are_attention",
        PAPER,
        "With all heads full the layer is ordinary multi-head attention.",
        "largest difference from softmax written out at most 1e-6 (named before), in float64",
        holds=(Bound("largest_difference_of_full_heads", "<=", 1e-6),),
    ),
    Claim(
        "a_wide_window_is_full",
        PAPER,
        "A local head whose window is as long as the sequence is a full one.",
        "largest difference at most 1e-6, in float64",
        holds=(Bound("largest_difference_of_wide_window", "<=", 1e-6),),
        fails=(Bound("largest_difference_of_wide_window", ">=", 1e-2),),
    ),
    Claim(
        "nothing_outside_the_window",
        PAPER,
        "A local head puts no mass outside its window.",
        "exactly 0, in the pattern and in what the fast form mixes",
        holds=(Bound("mass_outside_window", "<=", 0.0),),
    ),
    Claim(
        "compressed_has_its_anchors",
        PAPER,
        "A compressed head has ceil(n/stride) keys, over which its rows sum to one.",
        "that many columns; rows within 1e-12 of 1",
        holds=(Bound("anchors_too_many_or_few", "<=", 0.0), Bound("anchor_rows_from_one", "<=", 1e-12)),
    ),
    Claim(
        "heads_add_up",
        PAPER,
        "What the heads write and the bias add up to the output of the module.",
        "within 1e-5 of its largest entry, in float32, in every trained model",
        holds=(Bound("largest_difference_of_writes", "<=", 1e-5),),
        fails=(Bound("largest_difference_of_writes", ">=", 1e-2),),
    ),
    Claim(
        "mixing_is_as_good_as_full",
        PAPER,
        "Mixed heads do at least as well as full attention in all heads.",
        "accuracy at most .01 below, where full attention is .1 above guessing (our limits; the paper: .7 BLEU better)",
        holds=(Bound("mixed_over_full", ">=", -0.01),),
        fails=(Bound("mixed_over_full", "<=", -0.1),),
        given=(LEARNED,),
    ),
    Claim(
        "mixing_is_better_than_the_worst_kind",
        PAPER,
        "A mix of four kinds is better than the worst of them in all heads (it need not be better than the best).",
        "accuracy at least .05 above, where kinds differ by as much (our limits)",
        holds=(Bound("mixed_over_worst", ">=", 0.05),),
        fails=(Bound("mixed_over_worst", "<=", 0.0),),
        given=(LEARNED, DIFFER),
    ),
    Claim(
        "even_heads_do_better",
        PAPER,
        "Architectures whose heads contribute evenly do better.",
        "rank correlation of evenness and accuracy over the five architectures at least .9, which ranks in a random "
        "order reach in 5 cases of 120; where kinds differ by .05 (our limits)",
        holds=(Bound("rank_correlation_of_evenness_and_accuracy", ">=", ALIKE),),
        fails=(Bound("rank_correlation_of_evenness_and_accuracy", "<=", -ALIKE),),
        given=(LEARNED, DIFFER),
    ),
)


@experiment(
    title="Multiformer: heads of different kinds",
    paper=PAPER,
    summary="Full, local, Performer and compressed heads in one layer: what each is, what a mix learns, who writes.",
    advice=(
        "A mix of full, local, random-feature and compressed heads can do as well as full attention in all heads, "
        "and far better than the worst kind alone: mixing is an insurance when you do not know which cheap head "
        "suits your data. Do not choose a mix because heads contribute evenly; that did not go with accuracy here."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "50 s", "paper": "15 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def multiformer2022(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    exact = [{"seed": seed, **algebra(params.exact_tokens, params.heads, 8, seed)} for seed in seeds]
    models = [
        session.part(f"{name}-{seed}", partial(learned, name, params, seed, session))
        for seed in seeds
        for name in ARCHITECTURES
    ]
    measured: dict[str, list[float]] = {said: [one[name] for one in exact] for name, said in SAID.items()}
    for some in by_seed(models, seeds):
        for name, value in numbers_of(some).items():
            measured.setdefault(name, []).append(value)
    return Result(measured, (*exact, *models), figures_of(models, params), remarks(measured))


def figures_of(models: Sequence[Mapping[str, Any]], params: Params) -> tuple[Figure, ...]:
    def bars(number: str, series: str) -> list[Point]:
        return [
            Point.over([one[number] for one in models if one["kind"] == kind], kind, series) for kind in ARCHITECTURES
        ]

    mixed = [one["contributions"] for one in models if one["kind"] == "mixed"]
    heads = [
        Point.over(
            [one[layer][head] for one in mixed],
            f"{head + 1}: {MULTIFORMER[head % len(MULTIFORMER)]}",
            f"layer {layer + 1}",
        )
        for layer in range(params.layers)
        for head in range(params.heads)
    ]
    return (
        Figure(
            "accuracy",
            "One kind of head, and a mix of four",
            "Accuracy on sequences not trained on, and how evenly heads contribute; median over seeds.",
            "architecture",
            "accuracy, evenness",
            (*bars("accuracy", "accuracy"), *bars("evenness", "evenness")),
            kind="bars",
        ),
        Figure(
            "contributions",
            "Who writes in the mixed model",
            "Head contribution, the median over tokens and sequences; median over seeds.",
            "head",
            "contribution",
            tuple(heads),
            kind="bars",
        ),
    )


def remarks(measured: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    scores = ", ".join(f"{kind} {median(measured[f'accuracy_of_{kind}']):.3f}" for kind in ARCHITECTURES)
    return (
        f"What follows: accuracies were {scores}. A mix costs the sum of its heads' costs: where full attention in "
        "all heads is too dear, keep it in one head a layer and make the others local or compressed, rather than "
        "choosing one cheap kind for all; then look at the contributions (in every scan) for a kind that "
        "writes nothing.",
    )
