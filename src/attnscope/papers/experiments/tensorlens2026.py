"""The transformer as one operator (arXiv:2601.17958): does it equal the model, is its offset large, are its maps
faithful?

reconstruction   the operator T and its offset b at the input x0: T x0 + b compared with the model, in float64 and
                 float32; the same without b; T compared with the Jacobian
faithfulness     the answer while tokens are removed in the order of a row of T's maps (by norm, with the input, with
                 the output, with both), of attention rollout or of raw attention, for a classifier trained here and for
                 the embedded language model on real texts

The texts of the language model are passages of one book: an interval says how a mean might vary over other passages of
this book, and nothing about other books. The intervals of all differences between maps and baselines have a joint
coverage of 95% (`stats.intervals.simultaneous_differences`). The random baseline is the mean over several orders.

Differences from the paper: its benchmarks of images and text and its pretrained models are not shipped. `Params.model`
takes a folder with any decoder instead of the embedded model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.commands.explain.running import Run
from attnscope.commands.treat.train import Recipe
from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment
from attnscope.papers.trials import operator_rows
from attnscope.papers.trials.curves import Row, Rows, gather, select
from attnscope.papers.trials.operator_rows import BASELINES, accuracy
from attnscope.stats.intervals import simultaneous_differences

PAPER = "2601.17958"
SUBJECTS = {"classifier": "the classifier", "model": "the language model"}
OVER = {"classifier": "texts", "model": "other stretches of this book"}
WITH = {"norm": "its norms alone", "input": "the input", "output": "the output", "contribution": "input and output"}
CHECKS = (
    *("untouched_float64", "untouched_float32", "float64", "float32"),
    *("without_offset", "offset_share", "jacobian_distance", "jacobian_cosine"),
)
WORDS, SHORT = operator_rows.Words(), Recipe(steps=250, rate=2e-3)


@dataclass(frozen=True)
class Params:
    words: operator_rows.Words = WORDS
    width: int = 48
    layers: int = 3
    recipe: Recipe = SHORT
    texts: int = 32
    model: str | None = "pocket"  # the embedded model, or a folder
    model_texts: int = 16
    model_tokens: int = 32
    probes: int = 16


FULL = replace(
    Params(),
    words=operator_rows.Words(tokens=48),
    width=96,
    layers=6,
    recipe=Recipe(steps=800, rate=1e-3),
    texts=128,
    model_texts=64,
    model_tokens=64,
    probes=64,
)


def of_classifier(params: Params, seed: int, session: Session) -> dict[str, Any]:
    model = operator_rows.trained_classifier(params.words, params.width, params.layers, params.recipe, seed, session)
    runs = operator_rows.classifier_runs(model, params.words, params.texts, seed)
    row = _measure(runs, params.texts, "texts of the classifier", params, seed, session)
    return {"subject": "classifier", "accuracy": accuracy(model, params.words, seed), **row}


def of_model(params: Params, seed: int, session: Session) -> dict[str, Any]:
    assert params.model is not None
    runs = operator_rows.language_runs(params.model, params.model_texts, params.model_tokens, seed)
    return {
        "subject": "model",
        **_measure(runs, params.model_texts, "texts of the language model", params, seed, session),
    }


def _measure(
    runs: Iterator[Run], count: int, stage: str, params: Params, seed: int, session: Session
) -> dict[str, Any]:
    gaps: dict[str, list[float]] = {name: [] for name in operator_rows.METHODS}
    first: dict[str, float] = {}
    for number, run in enumerate(runs):
        session.advance(stage, number, count)
        first = first or operator_rows.checked(run, params.probes, seed)
        for name, gap in operator_rows.judged(run).items():
            gaps[name].append(gap)
    return {"seed": seed, "checked": first, "gaps": gaps}


def numbers_of(row: Row) -> dict[str, float]:
    """Return the quantities of one subject and seed, with simultaneous 95% intervals of the means over texts."""
    subject, gaps = row["subject"], row["gaps"]
    numbers = {f"{subject}_{name}": float(value) for name, value in row["checked"].items()}
    apart, reach = simultaneous_differences([gaps[name] for name in operator_rows.COMPARED])
    for mine, other in [(mine, other) for mine in operator_rows.MAPS for other in BASELINES] + [
        ("contribution", "norm")
    ]:
        cell = operator_rows.COMPARED.index(mine), operator_rows.COMPARED.index(other)
        mean, off = float(apart[cell]), float(reach[cell])
        ends = {"mean": mean, "low": mean - off, "high": mean + off}
        numbers |= {f"{subject}_{mine}_over_{other}_{end}": value for end, value in ends.items()}
    return numbers


def above(*differences: str) -> str:
    """Return the rule of a claim: it holds if all intervals are above zero and fails if all are below."""
    holds = ", ".join(f"{difference}_low > 0" for difference in differences)
    fails = ", ".join(f"{difference}_low < 0, {difference}_high < 0" for difference in differences)
    return f"holds: {holds}; fails: {fails}"


TOGETHER = "above zero, holding together with those of all other differences in 95 of 100 cases"
CLAIMS = claims(
    PAPER,
    """
    it_is_the_model: With everything frozen at one input, one linear operator and an offset give the model's own output.
        expected: compared with the unmodified model: largest difference at most 1e-10 of the largest number in float64
            (1e-5 in the language model, whose norms compute in float32), 1e-4 in float32
        holds: classifier_untouched_float64 <= 1e-10, classifier_untouched_float32 <= 1e-4,
            model_untouched_float64 <= 1e-5, model_untouched_float32 <= 1e-4
        fails: classifier_untouched_float64 >= 1e-3
    the_offset_is_needed: Biases add an offset that cannot be left out.
        expected: in a classifier with biases: error without it at least .01, its norm at least .1 of the output's (our
            limits)
        holds: classifier_without_offset >= 0.01, classifier_offset_share >= 0.1; fails: classifier_without_offset <=
            1e-3
    it_is_no_jacobian: The operator is not the derivative of the model.
        expected: ||T - J|| at least .1 of ||J|| in both models (our limit)
        holds: classifier_jacobian_distance >= 0.1, model_jacobian_distance >= 0.1
        fails: classifier_jacobian_distance <= 0.01, model_jacobian_distance <= 0.01
    """,
    *(
        f"""
        {name}_map_is_truer_in_{subject}: The operator's map with {WITH[name]} is more faithful than rollout and raw
                attention in {words}.
            expected: areas by perturbation farther apart than with either; intervals over {OVER[subject]} {TOGETHER}
            {above(*(f"{subject}_{name}_over_{other}" for other in BASELINES))}
        """
        for subject, words in SUBJECTS.items()
        for name in operator_rows.MAPS
    ),
    *(
        f"""
        both_ends_are_truer_than_norms_in_{subject}: Collapsed with input and output, the operator is more faithful than
                by its norms in {words}.
            expected: areas by perturbation farther apart; the interval over {OVER[subject]} {TOGETHER}
            {above(f"{subject}_contribution_over_norm")}
        """
        for subject, words in SUBJECTS.items()
    ),
)


@experiment(
    title="The transformer as one operator",
    paper=PAPER,
    summary="One operator and an offset are the model; whether the operator's maps are more faithful than rollout.",
    advice=(
        "With everything frozen at one input a transformer is exactly one linear operator and an offset. It is not the "
        "derivative, so do not read it as sensitivity. Which of its maps explains an answer depends on the model: with "
        "input and output it was far ahead of rollout and raw attention in our classifier, but in our language model "
        "no map differed from rollout, raw attention or the norms alone. So ask your own model: `attnscope explain "
        "MODEL CORPUS --evaluate`. The offset may be small but must be counted."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "20 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def tensorlens2026(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    subjects = {"classifier": of_classifier, **({"model": of_model} if params.model else {})}
    rows: list[Row] = [
        session.part(f"{subject}-{seed}", partial(work, params, seed, session))
        for subject, work in subjects.items()
        for seed in seeds
    ]
    words = [
        f"The classifier is right on {100 * min(row['accuracy'] for row in rows[: len(seeds)]):.0f}% of new texts."
    ]
    if any(row["checked"]["offset_share"] == 0 for row in select(rows, subject="model")):
        words.append("The language model has neither biases nor shifts of norms: its offset is zero.")
    return Result(gather(map(numbers_of, rows)), tuple(rows), figures(rows), tuple(words))


def figures(rows: Rows) -> tuple[Figure, ...]:
    present = {subject: words for subject, words in SUBJECTS.items() if select(rows, subject=subject)}
    gaps = tuple(
        Point.over(
            [float(sum(row["gaps"][name]) / len(row["gaps"][name])) for row in select(rows, subject=subject)],
            name.replace("_", " "),
            words,
        )
        for subject, words in present.items()
        for name in operator_rows.METHODS
    )
    checks = tuple(
        Point.over([row["checked"][name] for row in select(rows, subject=subject)], name.replace("_", " "), words)
        for subject, words in present.items()
        for name in CHECKS
    )
    title, reconstruction = "Gap of the areas by perturbation", "The operator, the model and its Jacobian"
    caption = "Negative area less positive area, mean over texts; median over seeds. 0 is chance."
    differences = (
        "Relative differences of T x + b from the unmodified and from the frozen model, of T x alone, the offset's "
        "share of the output's norm, and distance and cosine of T and the Jacobian. First text; median over seeds."
    )
    return (
        Figure("faithfulness", title, caption, "method", "gap", gaps, "bars"),
        Figure("reconstruction", reconstruction, differences, "number", "value", checks, "table"),
    )
