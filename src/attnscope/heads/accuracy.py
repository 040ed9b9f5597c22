"""What counts as realising a pattern: two errors of the worst row, and the precision the head will run in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from attnscope.core.errors import RefusalError, nearest

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


def precision(name: str) -> Dtype:
    """The precision of this name, as people give it."""
    for known in DTYPES:
        if name == known:
            return known
    raise RefusalError(f"There is no precision called '{name}'.{nearest(name, DTYPES)}")


@dataclass(frozen=True)
class Accuracy:
    """`ratio_error`: e1 of arXiv:2106.03764, ratios inside a row's support are kept within a factor 1 + e1.

    `leak`: the share of a row's attention that falls on zeros of the pattern, at most.
    """

    ratio_error: float = 0.1
    leak: float = 0.01
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        if not 0 < self.ratio_error < 100:
            raise RefusalError(
                f"A ratio error of {self.ratio_error:g} cannot be asked for: choose a number above 0, like 0.1."
            )
        if not 0 < self.leak < 1:
            raise RefusalError(
                f"A leak of {self.leak:g} cannot be asked for: choose a share between 0 and 1, like 0.01."
            )
        precision(self.dtype)


def asked(ratio_error: float, leak: float, dtype: str) -> Accuracy:
    """An accuracy as people ask for it: the name of the precision may be wrong."""
    return Accuracy(ratio_error, leak, precision(dtype))
