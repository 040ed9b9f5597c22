"""How many paths of each length a transformer has (arXiv:2103.03404, section 3.1), in exact integers.

With skips, a path chooses in each of L layers one of H heads or the skip: C(L, k) H^k paths have length k, (H + 1)^L in
all. Drawn blindly, a path has H/(H+1) L edges on average: nearly all paths are long. That short paths do most of the
work is therefore a statement about what paths carry, not about how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb

from attnscope.core.errors import RefusalError

ARCHITECTURES: dict[str, tuple[int, int]] = {  # layers, heads
    "DistilBERT": (6, 12),
    "BERT-base": (12, 12),
    "BERT-large": (24, 16),
    "GPT-3": (96, 96),
    "ViT-B": (12, 12),
    "T5-11B": (24, 128),
    "DeiT-T": (12, 3),
}


@dataclass(frozen=True)
class PathCounts:
    """`counts[k]` paths have k attention edges."""

    layers: int
    heads: int
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def shares(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(count, self.total) for count in self.counts)

    @property
    def mean_length(self) -> Fraction:
        return sum((k * share for k, share in enumerate(self.shares)), start=Fraction(0))


def path_counts(layers: int, heads: int) -> PathCounts:
    if layers < 1 or heads < 1:
        raise RefusalError(f"{layers} layers of {heads} heads have no paths: give at least one of each.")
    return PathCounts(layers, heads, tuple(comb(layers, k) * heads**k for k in range(layers + 1)))
