"""The picture of a compiled head: target, realised pattern and error, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from attnscope.charts.pattern_panels import pattern_panels, pooled
from attnscope.core.numerals import numeral
from attnscope.records.compiled import Compiled

_NUMBERS_AT_ONCE = 2**22  # of a block of rows
Map = Float[np.ndarray, "cell_row cell_key"]
What = Literal["target", "realised", "error"]
WHAT: tuple[What, ...] = ("target", "realised", "error")


def chart(compiled: Compiled, *, theme: str = "light") -> Any:
    """Pictures have their colours inside, so the chart is told its theme (light or dark) when it is made."""
    certificate = compiled.certificate
    return pattern_panels(
        *maps(compiled),
        size=(compiled.target.n, compiled.target.n_keys),
        title=f"{compiled.target.name}: {compiled.method} at width {certificate.d}",
        subtitle=f"{certificate.dtype}, worst row: ratio error {numeral(certificate.ratio_error)}, "
        f"leak {numeral(certificate.leak)}; {compiled.verdict}",
        theme=theme,
    )


def maps(compiled: Compiled) -> tuple[Map, Map, Map]:
    """Target, realised pattern and error, at most `LARGEST_SIDE` cells a side."""
    target, realised, error = (
        pooled(_blocks(compiled, what), compiled.target.n, compiled.target.n_keys) for what in WHAT
    )
    return target, realised, error


def _blocks(compiled: Compiled, what: What) -> Iterator[tuple[int, np.ndarray]]:
    """The pattern, what the head makes of it, or how far apart they are, a few rows at a time."""
    n = compiled.target.n
    step = max(1, _NUMBERS_AT_ONCE // compiled.target.n_keys)
    for first in range(0, n, step):
        last = min(first + step, n)
        if what == "target":
            yield first, compiled.target.dense(first, last)
        elif what == "realised":
            yield first, attention(compiled, first, last)
        else:
            yield first, np.abs(attention(compiled, first, last) - compiled.target.dense(first, last))


def attention(compiled: Compiled, first: int, last: int) -> Float[np.ndarray, "some_rows key"]:
    """softmax of the logits of rows first..last, in float32 as attention computes it (float64 for float64 heads).

    A head that overflows has rows without a number here, and the chart shows them as the largest error.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        logits = compiled.queries[first:last] @ compiled.keys.T
        logits *= logits.dtype.type(compiled.queries.shape[1] ** -0.5)
        if compiled.target.causal:
            logits[np.arange(logits.shape[1]) > np.arange(first, last)[:, None]] = -np.inf
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    return np.asarray(shares, dtype=np.float64)
