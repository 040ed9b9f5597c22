"""The whole transformer as one operator (arXiv:2601.17958): is it the model, what is its offset, are its maps true?

reconstruction   T x0 + b beside the model, in float64 and float32; the same without b; T beside the Jacobian
faithfulness     tokens taken away in the order of a row of T's maps (by norm, with the input, with the output, with
                 both), beside attention rollout and raw attention: a classifier trained here, and the embedded
                 language model on real texts

Texts of the language model are stretches of one book: an interval says what other stretches of this book might have
made of a mean, and nothing of other books. Intervals of all differences between maps and baselines hold together in 95
of 100 experiments (`stats.bootstrap.simultaneous_differences`), and the random floor is the mean of some orders.

What differs from the paper: its benchmarks of images and text and its pretrained models are not shipped. `Params.model`
takes a folder with any decoder in the place of the embedded model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.commands.treat.train import Recipe
from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment
from attnscope.papers.trials.operator_rows import (
    BASELINES,
    COMPARED,
    MAPS,
    METHODS,
    Words,
    accuracy,
    checked,
    classifier_runs,
    judged,
    language_runs,
    trained_classifier,
)
from attnscope.stats.intervals import simultaneous_differences

PAPER = "2601.17958"
SUBJECTS = {"classifier": "the classifier", "model": "the language model"}
OVER = {"classifier": "texts", "model": "other stretches of this book"}
WITH = {"norm": "its norms alone", "input": "the input", "output": "the output", "contribution": "input and output"}
WORDS, SHORT = Words(), Recipe(steps=250, rate=2e-3)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Params:
    words: Words = WORDS
    width: int = 48
    layers: int = 3
    recipe: Recipe = SHORT
    texts: int = 32
    model: str | None = "pocket"  # the embedded model, or a folder
    model_texts: int = 12
    model_tokens: int = 32
    probes: int = 16


FULL = replace(
    Params(),
    words=Words(tokens=48),
    width=96,
    layers=6,
    recipe=Recipe(steps=800, rate=1e-3),
    texts=128,
    model_texts=64,
    model_tokens=64,
    probes=64,
)


def of_classifier(params: Params, seed: int, session: Session) -> dict[str, Any]:
    model = trained_classifier(params.words, params.width, params.layers, params.recipe, seed, session)
    runs = classifier_runs(model, params.words, params.texts, seed)
    found = _judged(runs, params.texts, "texts of the classifier", params, seed, session)
    return {"subject": "classifier", "accuracy": accuracy(model, params.words, seed), **found}


def of_model(params: Params, seed: int, session: Session) -> dict[str, Any]:
    assert params.model is not None
    runs = language_runs(params.model, params.model_texts, params.model_tokens, seed)
    found = _judged(runs, params.model_texts, "texts of the language model", params, seed, session)
    return {"subject": "model", **found}


def _judged(runs: Any, count: int, stage: str, params: Params, seed: int, session: Session) -> dict[str, Any]:
    gaps: dict[str, list[float]] = {name: [] for name in METHODS}
    first: dict[str, float] = {}
    for number, run in enumerate(runs):
        session.advance(stage, number, count)
        first = first or checked(run, params.probes, seed)
        for name, gap in judged(run).items():
            gaps[name].append(gap)
    return {"seed": seed, "checked": first, "gaps": gaps}


def numbers_of(one: Row) -> dict[str, float]:
    """What the claims ask of one subject and seed. An interval is that of the mean over texts: 95%, all together."""
    subject, gaps = one["subject"], one["gaps"]
    numbers = {f"{subject}_{name}": float(value) for name, value in one["checked"].items()}
    pairs = [(mine, other) for mine in MAPS for other in BASELINES] + [("contribution", "norm")]
    apart, reach = simultaneous_differences([gaps[name] for name in COMPARED])
    for mine, other in pairs:
        place = COMPARED.index(mine), COMPARED.index(other)
        mean, off = float(apart[place]), float(reach[place])
        numbers |= {f"{subject}_{mine}_over_{other}_{end}": value for end, value in ends(mean, off).items()}
    return numbers


def ends(mean: float, off: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - off, "high": mean + off}


def below(difference: str) -> tuple[Bound, ...]:
    """The whole interval is below zero."""
    return tuple(Bound(f"{difference}_{end}", "<", 0.0) for end in ("low", "high"))


CLAIMS = (
    Claim(
        "it_is_the_model",
        PAPER,
        "With everything frozen at one input, one linear operator and an offset give the model's own output.",
        "beside the model called as it is: largest difference at most 1e-10 of the largest number in float64 (1e-5 in "
        "the language model, whose norms compute in float32), 1e-4 in float32",
        holds=(
            Bound("classifier_untouched_float64", "<=", 1e-10),
            Bound("classifier_untouched_float32", "<=", 1e-4),
            Bound("model_untouched_float64", "<=", 1e-5),
            Bound("model_untouched_float32", "<=", 1e-4),
        ),
        fails=(Bound("classifier_untouched_float64", ">=", 1e-3),),
    ),
    Claim(
        "the_offset_is_needed",
        PAPER,
        "Biases add an offset that cannot be left out.",
        "in a classifier with biases: error without it at least .01, its norm at least .1 of the output's (our limits)",
        holds=(Bound("classifier_without_offset", ">=", 0.01), Bound("classifier_offset_share", ">=", 0.1)),
        fails=(Bound("classifier_without_offset", "<=", 1e-3),),
    ),
    Claim(
        "it_is_no_jacobian",
        PAPER,
        "The operator is not the derivative of the model.",
        "||T - J|| at least .1 of ||J|| in both models (our limit)",
        holds=tuple(Bound(f"{subject}_jacobian_distance", ">=", 0.1) for subject in SUBJECTS),
        fails=tuple(Bound(f"{subject}_jacobian_distance", "<=", 0.01) for subject in SUBJECTS),
    ),
    *(
        Claim(
            f"{name}_map_is_truer_in_{subject}",
            PAPER,
            f"The operator's map with {WITH[name]} is more faithful than rollout and raw attention in {words}.",
            f"areas by perturbation farther apart than with either; intervals over {OVER[subject]} above zero, which "
            "hold together with those of all other differences in 95 of 100 cases",
            holds=tuple(Bound(f"{subject}_{name}_over_{other}_low", ">", 0.0) for other in BASELINES),
            fails=tuple(one for other in BASELINES for one in below(f"{subject}_{name}_over_{other}")),
        )
        for subject, words in SUBJECTS.items()
        for name in MAPS
    ),
    *(
        Claim(
            f"both_ends_are_truer_than_norms_in_{subject}",
            PAPER,
            f"Collapsed with input and output, the operator is more faithful than by its norms in {words}.",
            f"areas by perturbation farther apart; the interval over {OVER[subject]} above zero, which holds together "
            "with those of all other differences in 95 of 100 cases",
            holds=(Bound(f"{subject}_contribution_over_norm_low", ">", 0.0),),
            fails=below(f"{subject}_contribution_over_norm"),
        )
        for subject, words in SUBJECTS.items()
    ),
)


@experiment(
    title="The transformer as one operator",
    paper=PAPER,
    summary="One operator and an offset are the model; whether the operator's maps are truer than rollout.",
    advice=(
        "With everything frozen at one input a transformer is one linear operator and an offset, exactly; it is not"
        " the derivative, so do not read it as sensitivity. Which map of it explains an answer depends on the model:"
        " with input and output it was far ahead of rollout and raw attention in our classifier, and in our language "
        "model no map could be told from rollout, raw attention or the norms alone. So ask your own model: "
        "`attnscope explain MODEL CORPUS --evaluate`. The offset may be small, and must still be counted."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "20 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def tensorlens2026(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    found: list[Row] = [
        session.part(f"classifier-{seed}", partial(of_classifier, params, seed, session)) for seed in seeds
    ]
    if params.model:
        found += [session.part(f"model-{seed}", partial(of_model, params, seed, session)) for seed in seeds]
    measured: dict[str, list[float]] = {}
    for one in found:
        for name, value in numbers_of(one).items():
            measured.setdefault(name, []).append(value)
    return Result(measured, tuple(found), _figures(found), _remarks(found))


def _figures(found: Sequence[Row]) -> tuple[Figure, ...]:
    def mean(one: Row, name: str) -> float:
        return float(sum(one["gaps"][name]) / len(one["gaps"][name]))

    gaps = [
        Point.over([mean(one, name) for one in found if one["subject"] == subject], name.replace("_", " "), words)
        for subject, words in SUBJECTS.items()
        if any(one["subject"] == subject for one in found)
        for name in METHODS
    ]
    asked = (
        "untouched_float64",
        "untouched_float32",
        "float64",
        "float32",
        "without_offset",
        "offset_share",
        "jacobian_distance",
        "jacobian_cosine",
    )
    checks = [
        Point.over([one["checked"][name] for one in found if one["subject"] == subject], name.replace("_", " "), words)
        for subject, words in SUBJECTS.items()
        if any(one["subject"] == subject for one in found)
        for name in asked
    ]
    return (
        Figure(
            "faithfulness",
            "How far the areas by perturbation are apart",
            "Negative area less positive area, mean over texts; median over seeds. 0 is chance.",
            "method",
            "gap",
            tuple(gaps),
            "bars",
        ),
        Figure(
            "reconstruction",
            "The operator beside the model and its Jacobian",
            "Relative differences of T x + b from the model called as it is and from the frozen one, of T x alone, "
            "the offset's share of the output's norm, "
            "and distance and cosine of T and the Jacobian. First text; median over seeds.",
            "number",
            "value",
            tuple(checks),
            "table",
        ),
    )


def _remarks(found: Sequence[Row]) -> tuple[str, ...]:
    right = [one["accuracy"] for one in found if "accuracy" in one]
    said = [f"The classifier is right on {100 * min(right):.0f}% of new texts or more."] if right else []
    if any(one["subject"] == "model" and one["checked"]["offset_share"] == 0 for one in found):
        said.append("The language model has neither biases nor shifts of norms: its offset is zero.")
    return tuple(said)
