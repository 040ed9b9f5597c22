"""A synthetic map by contribution: tokens contribute most to themselves, and the first token to all."""

from __future__ import annotations

import math

from attnscope.commands.operator.record import OperatorMap

WORDS = ("<bos>", "The", " dog", " chased", " its", " own", " tail", " and", " the", " dog")


def sample_operator_map(tokens: int = 10, probes: int | None = None) -> OperatorMap:
    words = tuple(WORDS[place % len(WORDS)] for place in range(tokens))

    def value(i: int, j: int) -> float:
        return 0.0 if j > i else 4.0 * (i == j) + 2.0 * (j == 0) + math.sin(3 * i + 7 * j)

    values = tuple(tuple(value(i, j) for j in range(tokens)) for i in range(tokens))
    return OperatorMap(
        model="a model",
        class_name="Model",
        map="contribution" if probes is None else "norm",
        title="what each token puts into each row of the output",
        part="the whole model",
        tokens=words,
        rows=words,
        values=values,
        errors=None if probes is None else tuple(tuple(0.1 for _ in row) for row in values),
        probes=probes,
        constants=tuple(1.0 for _ in values) if probes is None else None,
        totals=tuple(1.0 + sum(row) for row in values) if probes is None else None,
        products=tokens * (probes or 1),
        dtype="float64",
        notes=("A note.",),
        provenance={"model": {"name": "a model"}},
    )
