"""Make the figures and remarks of `hybrid2026` from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnscope.core.experiment import Figure, Point, median
from attnscope.papers.trials.curves import Rows, curve, curves, select

RIGHT = "share of right answers"


def width_for(rows: Rows, share: float = 0.9) -> float:
    """Return the width at which this share of partners is found, interpolated in log width, or NaN."""
    widths, found = [row["width"] for row in rows], np.maximum.accumulate([row["found"] for row in rows])
    return float("nan") if found[-1] < share else float(np.exp(np.interp(share, found, np.log(widths))))


def figures(rows: Rows) -> tuple[Figure, ...]:
    fewer, memory, partners, sparse, recalled, trained = (
        select(rows, part=name) for name in ("fewer", "memory", "partners", "sparse", "recalled", "trained")
    )
    lookups = [
        *curve(fewer, "lookups", "accuracy", "full attention"),
        *curve(fewer, "lookups", "chance", "chance", dashed=True),
    ]
    held = (("delta", "delta rule"), ("sum", "sum"), ("least", "best linear map"))
    errors = [point for name, title in held for point in curve(memory, "pairs", name, title)]
    for name, title in held:
        errors += curve(memory, "pairs", f"{name}_formula", f"{title}, formula", dashed=True)
    kinds = list(dict.fromkeys(row["kinds"] for row in partners))
    sums = curve(select(sparse, block=sparse[0]["block"]), "width", "full", "full attention")
    for block in dict.fromkeys(row["block"] for row in sparse):
        sums += curve(select(sparse, block=block), "width", "found", f"blocks of {block}")
        sums += curve(select(sparse, block=block), "width", "formula", f"blocks of {block}, formula", dashed=True)
    drawn: tuple[Any, ...] = (  # name, title, caption, x, y, points
        (
            "lookups",
            "Eight functions composed, by number of lookups",
            "Hand-built blocks, random functions; dashed: chance.",
            "lookups",
            RIGHT,
            lookups,
        ),
        (
            "memory",
            f"What a memory of width {memory[0]['width']} recalls",
            "Mean squared error over all pairs stored, values of mean square 1; dashed: formulas.",
            "pairs stored",
            "mean squared error",
            errors,
        ),
        (
            "partners",
            f"Two lookups by blocks of two kinds, tables of {partners[0]['entries']} entries",
            "Hand-built; keys are orthonormal where the width allows it, random below.",
            "width of keys",
            RIGHT,
            curves(partners, "width", "accuracy", "kinds", kinds),
        ),
        (
            "two_sum",
            "2-Sum: partners found",
            "Random codes; blocks show their mean key and the best are read; dashed: Gaussian count.",
            "width of keys",
            "share found",
            sums,
        ),
        (
            "recalled",
            "One lookup, trained: accuracy against the size of the table",
            "One block, one head of width 8; median and range over seeds.",
            "entries",
            RIGHT,
            curves(recalled, "arguments", "accuracy", "kinds", ("full", "delta", "linear")),
        ),
    )
    bars = Figure(
        "trained",
        "Composition, trained: accuracy against functions and symbols",
        "As many blocks as functions, equally many weights in all kinds; one kind, or memories and a full block last.",
        "functions of symbols",
        RIGHT,
        tuple(bars_of(trained)),
        kind="bars",
    )
    curve_figures = [
        Figure(name, title, caption, x, y, tuple(points), log_x=name != "lookups")
        for name, title, caption, x, y, points in drawn
    ]
    return (*curve_figures, bars)


def bars_of(rows: Rows) -> list[Point]:
    names = {"full": "full", "delta": "delta rule", "linear": "sum"}
    accuracies: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        first, last = row["kinds"].split(", ")[0], row["kinds"].split(", ")[-1]
        series = names[first] if first == last else f"{names[first]}, last block {names[last]}"
        accuracies.setdefault((f"{row['folds']} of {row['arguments']}", series), []).append(row["accuracy"])
    return [Point.over(values, x, series) for (x, series), values in accuracies.items()]


def remarks(measured: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    mixed, memories, sums = (median(measured[f"trained_full_over_{name}"]) for name in ("mixed", "memories", "sums"))
    return (
        "What follows: in a hybrid count two things. First, how many lookups depend on each other: each needs a block "
        "that can do it, one after the other in a causal model, unless the text defines things before it uses them "
        "(then entries look ahead, and the logarithm of that number suffices). Second, how much each lookup has to "
        "choose from: a linear or delta-rule block replaces a full one exactly as long as its keys are as wide as the "
        "table has entries, and beyond that forgets, 2(1 - d/m). Put full blocks where tables are large. Trained, a "
        f"memory and then full attention were {mixed:+.2f} behind two full blocks, memories alone {memories:+.2f}, "
        f"sums alone {sums:+.2f}.",
        "What is not shown: the paper's lower bound. It holds while H d p <= n^(2^(-4L-2)), which no n here meets, so "
        "no run of this size can confirm or contradict it. Trained models show what this recipe learned in these "
        "steps, not what such blocks can express.",
        "Blocks of keys that show their mean need a width that grows with their size to the power "
        f"{median(measured['power_of_block']):.2f} (in this range), where full attention needs the logarithm of the "
        "numbers: choosing blocks by a summary is what costs, not reading few of them.",
    )
