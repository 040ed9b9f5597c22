"""What `fast2024` draws and says: time, operations, accuracy, and the weight of a needle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.core.experiment import Figure, Point, median
from attnscope.trials.curves import curve
from attnscope.trials.factorised_cost import KINDS
from attnscope.trials.trained_alike import accuracy_bars


def factorised_figures(
    known: Sequence[Mapping[str, Any]], cost: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]
) -> tuple[Figure, ...]:
    def costing(y: str) -> tuple[Point, ...]:
        return tuple(
            point
            for causal, panel in ((False, "all keys"), (True, "causal"))
            for kind in KINDS
            for point in curve(
                [row for row in cost if row["kind"] == kind and row["causal"] == causal], "tokens", y, kind, panel
            )
        )

    needles = [row for one in known for row in one["needle"]]
    axes: dict[str, Any] = {"log": True, "log_x": True}
    return (
        Figure(
            "time",
            "Time of one head",
            "Forward, float32, one core, shortest of three; softmax in its fused kernel. Not the same twice.",
            "tokens",
            "milliseconds",
            costing("milliseconds"),
            **axes,
        ),
        Figure(
            "operations",
            "Operations in matrix products",
            "Counted, not timed; softmax without skipping what a causal mask hides.",
            "tokens",
            "operations",
            costing("operations"),
            **axes,
        ),
        Figure(
            "accuracy",
            "Models that differ in attention alone",
            "Accuracy on sequences not trained on; median over seeds.",
            "task",
            "accuracy",
            accuracy_bars(models, KINDS),
            kind="bars",
        ),
        Figure(
            "needle",
            "Weight of a key that equals its query",
            "Among random keys, standardised; mean over keys, median and range over seeds.",
            "tokens",
            "weight",
            tuple(
                point
                for kind in KINDS
                for point in curve([row for row in needles if row["kind"] == kind], "tokens", "weight", kind)
            ),
            **axes,
        ),
    )


def factorised_remarks(
    cost: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Sequence[float]],
    dim: int,
    lengths: Sequence[int],
    needles: Sequence[int],
) -> tuple[str, ...]:
    def first_win(kind: str) -> str:
        for tokens in lengths:
            here = {row["kind"]: row["milliseconds"] for row in cost if row["tokens"] == tokens and not row["causal"]}
            if here[kind] < here["softmax"]:
                return f"from {tokens} tokens on"
        return f"not up to {lengths[-1]} tokens"

    blunt = median(measured["needle_weight_of_fastmax2_over_softmax"])
    return (
        f"What follows: with heads of {dim} dimensions, fastmax1 was faster than the fused kernel on this "
        f"machine {first_win('fastmax1')}, fastmax2 {first_win('fastmax2')} (all keys). It pays for long sequences and "
        f"narrow heads, in models trained with it: a key that equals its query gets {blunt:.2f} of the weight that "
        f"softmax gives it among {needles[-1]}, so what needs one token out of many should keep some softmax heads.",
    )
