"""What `oversmoothing2022` draws and says: similarity against depth, and what fused layers are like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.core.experiment import Figure, Point, median
from attnscope.trials.curves import curve
from attnscope.trials.smoothing import ALL_WAYS, PLAIN, WAYS

Row = Mapping[str, Any]


def smoothing_figures(
    stacks: Sequence[Row], trained: Sequence[Row], told: Sequence[Row], gains: Sequence[float]
) -> tuple[Figure, ...]:
    random = [
        point
        for gain in gains
        for alone in (False, True)
        for point in curve(
            [row for row in stacks if (row["gain"], row["alone"]) == (gain, alone)],
            "depth",
            "similarity",
            f"gain {gain:g}",
            dashed=alone,
        )
    ]
    kinds: dict[str, Sequence[Row]] = {
        f"encoder, {kind}": [one for one in trained if one["kind"] == kind] for kind in (PLAIN, *ALL_WAYS)
    }
    kinds |= {"language model": told} if told else {}
    curves = [
        Point.over([one["similarity"][depth] for one in some], depth, name)
        for name, some in kinds.items()
        for depth in range(len(some[0]["similarity"]))
    ]
    bars = [
        Point.over([one[number] for one in trained if one["kind"] == kind], kind, words)
        for number, words in (("read", "similarity of what the output reads"), ("accuracy", "accuracy"))
        for kind in (PLAIN, *ALL_WAYS)
    ]
    return (
        Figure(
            "random",
            "Random post-norm encoders",
            "Mean cosine similarity of tokens; gain: how much attention writes. Dashed: every token attends to itself "
            "alone, so that as much is written and nothing is mixed. Median and range over seeds.",
            "depth",
            "similarity",
            tuple(random),
        ),
        Figure(
            "trained",
            "Trained models",
            "Mean cosine similarity of tokens; encoders trained on convex hulls. Median and range over seeds.",
            "depth",
            "similarity",
            tuple(curves),
        ),
        Figure(
            "fusion",
            "Encoders trained with and without fusion",
            "Similarity of the tokens that the output reads, and accuracy; median over seeds.",
            "fusion",
            "similarity, accuracy",
            tuple(bars),
            kind="bars",
        ),
    )


def smoothing_remarks(trained: Sequence[Row], told: Sequence[Row]) -> tuple[str, ...]:
    read = {kind: median([one["read"] for one in trained if one["kind"] == kind]) for kind in (PLAIN, *ALL_WAYS)}
    said = ", ".join(f"{value:.2f} with {kind}" for kind, value in read.items() if kind != PLAIN)
    more = (
        "Fused without more training, the layers of the language model have {max:.2f} by max and {gate:.2f} by "
        "equal weights, where the last layer has {last:.2f}: max moves all tokens the same way, and can make "
        "them more alike."
    )
    model = {way: median([one["fused"][way] for one in told]) for way in ("last", *WAYS)} if told else {}
    return (
        f"What follows: the plain encoder's tokens end at a similarity of {read[PLAIN]:.2f}, fused at {said}. Look "
        "at the curve of a model first: fusing layers helps where the last layer is smoother than those before it.",
        *([more.format(**model)] if model else []),
    )
