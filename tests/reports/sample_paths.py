"""A synthetic but consistent decomposition for charts and pages, without running a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnscope.commands.paths.effect_record import EdgeEffect, Effects, HeadEffect, SetEffect
from attnscope.commands.paths.record import Chain, Goal, LengthRow, PathReport, Players, Prediction


def sample_paths(layers: int = 6, heads: int = 4, seed: int = 0, **changes: Any) -> PathReport:
    """Return contributions that shrink by a factor of three per length; from the third on, the prediction is final."""
    rng = np.random.default_rng(seed)
    stream = [2.0, *(4.0 / 3.0**k for k in range(layers))]
    constants = [0.25, *(-0.1 / 3.0**k for k in range(layers))]
    values = [a + b for a, b in zip(stream, constants, strict=True)]
    whole = float(sum(values))
    table = rng.normal(size=(layers, heads, layers + 1)) * np.array([0, *(3.0**-k for k in range(layers))])
    # Each head of a path is credited with the whole path, so all heads together have k times the sum of paths of length
    # k.
    table += (np.arange(layers + 1) * values - table.sum((0, 1))) / (layers * heads)
    rows = []
    for k, value in enumerate(values):
        reached = float(sum(values[: k + 1]))
        up_to = Prediction(
            value=reached,
            predicted=" Rome" if k >= 2 else " the",
            probability=min(1.0, 0.5 + 0.05 * k),
            target_probability=min(1.0, 0.5 + 0.05 * k) if k >= 2 else 0.1 + 0.05 * k,
            loss=6.0 / (k + 1) + 1.0,
            distance=abs(whole - reached) / whole if k < layers else 0.0,
        )
        without = Prediction(whole - value, " also" if k == 1 else " Rome", 0.4, 0.3, 2.0, value / whole)
        rows.append(
            LengthRow(
                length=k,
                stream=stream[k],
                constants=constants[k],
                paths=heads**k,
                residual=0.9 / 4.0**k,
                residual_share=0.8 if k == 0 else 0.2 / layers,
                energy=stream[k] ** 2 * (1.0 if k == 0 else 20.0),
                energy_error=0.1 * k,
                up_to=up_to,
                without=without,
            )
        )
    values_of_heads = (table / np.maximum(np.arange(layers + 1), 1)).sum(-1)
    mlps = rng.normal(size=(layers, 1))
    fields: dict[str, Any] = {
        "model": "sample",
        "class_name": "SampleForCausalLM",
        "stack": "decoder",
        "text": "The capital of Italy is",
        "tokens": ("The", " capital", " of", " Italy", " is"),
        "target": "logit of ' Rome' after the last token",
        "output": "tokens",
        "position": 4,
        "dtype": "float64",
        "value": whole,
        "total": whole + 1e-15,
        "linear_difference": 3e-16,
        "lengths": tuple(rows),
        "whole_residual": 0.8,
        "head_lengths": nested(table),
        "head_values": nested(values_of_heads),
        "edges": tuple(values),
        "players": Players(nested(values_of_heads / 2), nested(mlps), 0.5, whole),
        "top": (
            Chain(2.0, (), 4, " is", 2.0),
            Chain(1.5, ((3 % layers, 1),), 3, " Italy", 1.4),
            Chain(-0.5, ((0, 2 % heads), (3 % layers, 1)), 1, " capital", -0.2),
        ),
        "top_exact": False,
        "top_missed": 0.01,
        "draws": 16,
        "provenance": {"model": {"name": "sample"}},
        "goal": Goal("logit", " Rome", where="after the last token"),
    }
    return PathReport(**{**fields, **changes})


def nested(array: np.ndarray) -> Any:
    def tuples(thing: Any) -> Any:
        return tuple(tuples(one) for one in thing) if isinstance(thing, list) else thing

    return tuples(array.tolist())


def with_effects(report: PathReport) -> PathReport:
    return replace(report, effects=sample_effects(report))


def sample_effects(report: PathReport, probability: float = 0.8, **changes: Any) -> Effects:
    """Return effects in which block 0 head 0 moves where block 1 heads 0 and 1 look, and block 1 head 2 is against."""
    without = {(0, 0): 0.01, (1, 0): 0.2, (1, 1): 0.1, (1, 2): 0.95}
    heads = []
    for block, row in enumerate(report.head_values):
        for head, value in enumerate(row):
            left = without.get((block, head), probability)
            total = 10 * (probability - left)
            heads.append(HeadEffect(block, head, total, left, value, 0.5, total - 0.5 - value))
    edges = (
        EdgeEffect((0, 0), (1, 1), "key", 6.0, 0.12, induction=True),
        EdgeEffect((0, 0), (1, 0), "key", 5.0, 0.22, induction=True),
        EdgeEffect((0, 0), (1, 2), "value", -1.0, 0.93),
    )
    sets = (SetEffect(((1, 0), (1, 1)), 7.0, 0.02),)
    fields: dict[str, Any] = {
        "replacement": "mean",
        "reference": "32 windows of 16 tokens from the embedded book",
        "value": report.value,
        "probability": probability,
        "of_heads": len(heads),
        "heads": tuple(heads),
        "edges": edges,
        "sets": sets,
    }
    return Effects(**{**fields, **changes})
