"""The figures and the words of `hybrid2026`, from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnscope.core.experiment import Figure, Point, median
from attnscope.papers.trials.curves import curve

Rows = Sequence[Mapping[str, Any]]


def of(rows: Rows, part: str, **which: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["part"] == part and all(row[key] == value for key, value in which.items())]


def needed(rows: Rows, share: float = 0.9) -> float:
    """The width at which so many partners are found, between widths by straight lines in the logarithm; or NaN."""
    widths, found = [row["width"] for row in rows], np.maximum.accumulate([row["found"] for row in rows])
    return float("nan") if found[-1] < share else float(np.exp(np.interp(share, found, np.log(widths))))


def figures(rows: Rows) -> tuple[Figure, ...]:
    fewer, memory, sparse = of(rows, "fewer"), of(rows, "memory"), of(rows, "sparse")
    kinds = list(dict.fromkeys(row["kinds"] for row in of(rows, "partners")))
    held = (("delta", "delta rule"), ("sum", "sum"), ("least", "best linear map"))
    drawn = [
        Figure(
            "lookups",
            "Eight functions composed, by number of lookups",
            "Hand-built layers, random functions; dashed: chance.",
            "lookups",
            "share of right answers",
            (
                *curve(fewer, "lookups", "accuracy", "full attention"),
                *curve(fewer, "lookups", "chance", "chance", dashed=True),
            ),
        ),
        Figure(
            "memory",
            f"What a memory of width {memory[0]['width']} gives back",
            "Mean squared error over all pairs stored, values of mean square 1; dashed: formulas.",
            "pairs stored",
            "mean squared error",
            (
                *(point for name, title in held for point in curve(memory, "pairs", name, title)),
                *(
                    point
                    for name, title in held
                    for point in curve(memory, "pairs", f"{name}_formula", f"{title}, formula", dashed=True)
                ),
            ),
            log_x=True,
        ),
        Figure(
            "partners",
            f"Two lookups by layers of two kinds, tables of {of(rows, 'partners')[0]['entries']} entries",
            "Hand-built; keys are orthonormal where the width allows it, random below.",
            "width of keys",
            "share of right answers",
            tuple(
                point for kind in kinds for point in curve(of(rows, "partners", kinds=kind), "width", "accuracy", kind)
            ),
            log_x=True,
        ),
        Figure(
            "two_sum",
            "2-Sum: partners found",
            "Random codes; blocks show their mean key and the best are looked at; dashed: Gaussian count.",
            "width of keys",
            "share found",
            (
                *curve(of(sparse, "sparse", block=sparse[0]["block"]), "width", "full", "full attention"),
                *(
                    point
                    for block in dict.fromkeys(row["block"] for row in sparse)
                    for mine in [of(sparse, "sparse", block=block)]
                    for point in (
                        *curve(mine, "width", "found", f"blocks of {block}"),
                        *curve(mine, "width", "formula", f"blocks of {block}, formula", dashed=True),
                    )
                ),
            ),
            log_x=True,
        ),
        Figure(
            "recalled",
            "One lookup, trained: accuracy against the size of the table",
            "One layer, one head of width 8; median and range over seeds.",
            "entries",
            "share of right answers",
            tuple(
                point
                for kind in ("full", "delta", "linear")
                for point in curve(of(rows, "recalled", kinds=kind), "arguments", "accuracy", kind)
            ),
            log_x=True,
        ),
        Figure(
            "trained",
            "Composition, trained: accuracy against functions and symbols",
            "As many layers as functions, as many numbers in all kinds; one kind, or memories and a full layer last.",
            "functions of symbols",
            "share of right answers",
            tuple(bars_of(of(rows, "trained"))),
            kind="bars",
        ),
    ]
    return tuple(drawn)


def bars_of(rows: Rows) -> list[Point]:
    names = {"full": "full", "delta": "delta rule", "linear": "sum"}
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        first, last = row["kinds"].split(", ")[0], row["kinds"].split(", ")[-1]
        series = names[first] if first == last else f"{names[first]}, last layer {names[last]}"
        found.setdefault((f"{row['folds']} of {row['arguments']}", series), []).append(row["accuracy"])
    return [Point.over(values, x, series) for (x, series), values in found.items()]


def remarks(measured: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    return (
        "What follows: in a hybrid count two things. How many lookups hang on each other: each needs a layer that can "
        "do it, in a causal model one after the other, unless the text gives what is looked up before what looks it up "
        "(definitions first: then entries look ahead and the logarithm of that number will do). And how much each "
        "lookup has to choose from: a linear or delta-rule layer stands for a full one exactly as long as its keys are "
        "as wide as the table has entries, and beyond that forgets, 2(1 - d/m). Put the full layers where tables are "
        f"large. Trained, a memory and then full attention were "
        f"{median(measured['trained_full_over_mixed']):+.2f} behind two full layers, memories alone "
        f"{median(measured['trained_full_over_memories']):+.2f}, sums alone "
        f"{median(measured['trained_full_over_sums']):+.2f}.",
        "What is not shown: the paper's lower bound. It holds while H d p <= n^(2^(-4L-2)), which no n "
        "that exists here meets, so that no run of this size can confirm or contradict it. Trained models show what "
        "this recipe learned in these steps, not what such layers can express.",
        f"Blocks of keys that show their mean need a width that grows with their size to the power "
        f"{median(measured['power_of_block']):.2f} (in this range), where full attention needs the logarithm of the "
        "numbers: choosing blocks by a summary is what costs, not looking into few of them.",
    )
