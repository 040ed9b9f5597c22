"""What `mind_the_gap2024` draws and says: stable ranks and gradients against n, beside their laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.core.experiment import Figure, Point, median
from attnscope.trials.curves import curve
from attnscope.trials.random_markov import kept_rank, softmax_excess

Row = Mapping[str, Any]


def markov_figures(rows: Sequence[Row], sizes: Sequence[int], layers: int, width: int) -> tuple[Figure, ...]:
    falling, kept = [], []
    for layer in range(1, layers + 1):
        series = f"after {layer}"
        falling += curve(rows, "tokens", f"softmax {layer}", series)
        falling += [Point(n, softmax_excess(n, layer), series, dashed=True) for n in sizes]
        kept += curve(rows, "tokens", f"A - J {layer}", series)
        kept += [Point(n, kept_rank(n, layer), series, dashed=True) for n in sizes]
    gradients = []
    for name in ("softmax", "A - J"):
        gradients += curve(rows, "tokens", f"gradient {name}", name)
        gradients += curve(rows, "tokens", f"gradient {name}, fixed width", name, dashed=True)
    seen = "Full: measured, median and range over seeds; dashed: "
    return (
        Figure(
            "rank-softmax",
            "Softmax attention: how far tokens are from one direction",
            f"Stable rank of X X^T, less 1, after 1, 2, 3 layers. {seen}(2l + 1) n^(1 - 2l), derived.",
            "tokens",
            "stable rank - 1",
            tuple(falling),
            log=True,
            log_x=True,
        ),
        Figure(
            "rank-without-mean",
            "A - J: the stable rank that is kept",
            f"The same stacks with J taken away. {seen}the law of products of normal matrices.",
            "tokens",
            "stable rank",
            tuple(kept),
            log=True,
            log_x=True,
        ),
        Figure(
            "gradients",
            "Gradient of the last layer's output by the first layer's value weights",
            f"Frobenius norm, {layers} layers; median and range over seeds. Full: as many coordinates as "
            f"tokens; dashed: {width} coordinates.",
            "tokens",
            "norm of gradient",
            tuple(gradients),
            log=True,
            log_x=True,
        ),
    )


def markov_remarks(rows: Sequence[Row], sizes: Sequence[int], layers: int) -> tuple[str, ...]:
    longest = [row for row in rows if row["tokens"] == sizes[-1]]
    depths = range(1, layers + 1)

    def said(name: str) -> str:
        return ", ".join(f"{median([row[f'{name} {layer}'] for row in longest]):.1f}" for layer in depths)

    return (
        f"What follows: at initialisation a longer context makes collapse worse, not better. At {sizes[-1]} "
        f"tokens {median([row['softmax 1'] for row in longest]):.1e} of stable rank is left above 1 behind one "
        "layer, so skips, or A - J (treat --remedy minus_uniform), matter most where sequences are long. Without J, "
        "writes shrink with the length, which a norm behind attention or larger value weights have to make up for.",
        f"The value weights belong to the set-up: with them A - J keeps {said('A - J')} at {sizes[-1]} tokens, "
        f"without them {said('A - J, no values')}.",
    )
