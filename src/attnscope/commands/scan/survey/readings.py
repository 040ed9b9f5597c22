"""Helpers for findings: grids of means, the baseline of uniform attention, and the largest activations of the stream.

A share of attention means something only relative to uniform attention: over 8 tokens under a causal mask, uniform
attention already puts a third of its weight on the first key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray

from attnscope.commands.scan.survey.cell import Cell
from attnscope.commands.scan.survey.survey import Survey, stack_means
from attnscope.core.card import Card
from attnscope.core.finding import Finding, FindingKind
from attnscope.core.words import blocks, count, heads, percent, within

_EULER = 0.5772156649015329
SHORTEST = 2  # tokens; with fewer there is only one key


@dataclass(frozen=True)
class Grid:
    """The means of one measure in one stack and site."""

    stack: str
    site: str
    means: NDArray[np.float64]  # [blocks, heads] or [blocks], NaN where nothing was measured
    cells: dict[int, Cell]
    tail: str  # " of the encoder", if the model has several stacks

    @property
    def measured(self) -> int:
        """The number of heads (or blocks) with a mean."""
        return int(np.isfinite(self.means).sum())

    def portion(self, found: Sequence[tuple[int, int]]) -> str:
        """Return `176 of 270 heads (blocks 12-29) of the decoder`."""
        depths = blocks(layer for layer, _ in found)
        return f"{len(found):,} of {count(self.measured, 'head')} ({depths}){self.tail}"

    def peak(self, place: tuple[int, int] | int) -> dict[str, int]:
        """Return the location of the largest value at a place: the sequence (`sample`), and a token or key in it."""
        layer, head = place if isinstance(place, tuple) else (place, 0)
        return dict(self.cells[layer].peak.places()[head] or {})

    def chosen(self, mask: Bool[np.ndarray, "*shape"]) -> tuple[tuple[int, int], ...]:
        """Return the (block, head) pairs where the mask is True, in order."""
        return tuple((int(layer), int(head)) for layer, head in np.argwhere(mask))

    def strongest(self, mask: Bool[np.ndarray, "*shape"]) -> list[tuple[int, int]]:
        """Return the (block, head) pairs where the mask is True, largest mean first."""
        return sorted(self.chosen(mask), key=lambda place: (-self.means[place], place))


def grids(survey: Survey, measure: str, part: str = "value") -> Iterator[Grid]:
    """Yield a grid for each stack and site at which the measure was taken."""
    many = len(survey.stacks) > 1
    for stack, site in survey.places(measure, part):
        column = survey.column(measure, part, stack, site)
        yield Grid(stack, site, stack_means(column), column, within(stack, site, many))


def grid_at(survey: Survey, measure: str, stack: str, site: str, part: str = "value") -> Grid | None:
    return next((g for g in grids(survey, measure, part) if (g.stack, g.site) == (stack, site)), None)


@dataclass(frozen=True)
class Uniform:
    """Uniform attention over `length` keys: under a causal mask row i sees i of them, otherwise all."""

    length: float
    causal: bool

    @property
    def entropy(self) -> float:
        """The mean over rows of ln(number of keys), which is the largest possible entropy: ln(n!)/n under a causal
        mask."""
        return math.lgamma(self.length + 1) / self.length if self.causal else math.log(self.length)

    @property
    def keys(self) -> float:
        """The mean over rows of the number of keys, which is the largest possible support."""
        return (self.length + 1) / 2 if self.causal else self.length

    @property
    def distance(self) -> float:
        """The largest possible mean distance: every query attends to its farthest key.

        Under a causal mask that is the first, (n - 1)/2 away on average. Without a mask it is the farther end,
        max(i, n - 1 - i) away, whose mean is 3n/4 - 1/2 for an even n and 1/(4n) less for an odd one.
        """
        return (self.length - 1) / 2 if self.causal else 0.75 * self.length - 0.5

    @property
    def span(self) -> float:
        """The largest distance between two tokens."""
        return self.length - 1

    @property
    def share(self) -> float:
        """The mean over rows of 1/(number of keys): the share of the first key, and of the query's own token.

        Under a causal mask H_n/n, with H_n = ln n + 0.5772 + 1/(2n) - 1/(12n^2) to within 1/(120n^4).
        """
        n = self.length
        if not self.causal:
            return 1 / n
        return min(1.0, (math.log(n) + _EULER + 1 / (2 * n) - 1 / (12 * n * n)) / n)


def uniform_attention(survey: Survey, stack: str, site: str) -> Uniform | None:
    """Return uniform attention at the mean length of the sequences, or None if the length is unknown.

    The stack's own length is used if provenance has it, otherwise the corpus's. For cross-attention it is the
    length of the other stack, if there is just one and its tokens were counted.
    """
    stacks = [s for s in survey.provenance.get("model", {}).get("stacks", []) if isinstance(s, dict)]
    corpus = survey.provenance.get("corpus", {})
    own: dict[str, Any] = next((s for s in stacks if s.get("name") == stack), {})
    if site == "uneven":
        return None  # the number of keys is unknown
    if site == "self":
        tokens, causal = own.get("tokens", corpus.get("tokens")), bool(own.get("causal"))
    else:
        others = [s for s in stacks if s.get("name") != stack]
        tokens, causal = others[0].get("tokens") if len(others) == 1 else None, False
    if not corpus.get("sequences") or not tokens:
        return None
    return Uniform(max(1.0, tokens / corpus["sequences"]), causal)


def largest(survey: Survey, card: Card, stack: str, site: str) -> float | None:
    """Return the largest possible value of a measure at this length, or None if length or bound is unknown."""
    uniform = uniform_attention(survey, stack, site)
    if uniform is None or card.bound is None or uniform.length < SHORTEST:
        return None
    bound: float = getattr(uniform, card.bound)
    return bound


def raised(threshold: float, uniform: Uniform | None) -> float:
    """Raise a threshold for a mean share on short sequences to twice what uniform attention gives.

    The factor of two leaves a margin for sequences of different lengths, whose mean of 1/n is a little above 1/n at the
    mean length. A threshold of 0.3 under a causal mask is raised only below 26 tokens. With four tokens or fewer no
    share can pass it.
    """
    return threshold if uniform is None else max(threshold, 2 * uniform.share)


def aside(threshold: float, uniform: Uniform | None) -> str:
    """Return a sentence on why a threshold was raised, or nothing if it was not."""
    if uniform is None or raised(threshold, uniform) == threshold:
        return ""
    bar, tokens, share = percent(raised(threshold, uniform)), f"{uniform.length:.3g}", percent(uniform.share)
    return f" The bar is {bar} because over {tokens} tokens uniform attention alone gives {share}."


@dataclass(frozen=True)
class Level:
    """The largest activation of the stream between two half-blocks: its mean over sequences, and its cell."""

    layer: int
    site: str
    size: float
    cell: Cell

    @property
    def writer(self) -> tuple[int, str]:
        """The block, and its half, that wrote this state; block -1 is the embedding."""
        return (self.layer, "attention") if self.site == "middle" else (self.layer - 1, "MLP")

    @property
    def largest(self) -> float:
        """The largest value in any sequence."""
        return float(self.cell.moments.maximum)

    @property
    def sample(self) -> int | None:
        """The sequence with the largest value."""
        return (self.cell.peak.places()[0] or {}).get("sample")

    def label(self, name: str) -> tuple[int, float] | None:
        """Return the most common label and the share of sequences with it."""
        return self.cell.tallies[name].most_common()[0] if name in self.cell.tallies else None

    def where(self) -> str:
        """Return ` (channel 7, token 0 in 80% of sequences)`, or nothing."""
        labels = ((name, self.label(name)) for name in ("channel", "token"))
        named = [
            f"{name} {label[0]}" + (f" in {percent(label[1])} of sequences" if label[1] < 1 else "")
            for name, label in labels
            if label
        ]
        return f" ({', '.join(named)})" if named else ""


def levels_of(survey: Survey, stack: str) -> list[Level]:
    """Return the levels in the order in which half-blocks write: entering block 0, after its attention, entering block
    1, ..."""
    found = [
        Level(key.layer, key.site, float(cell.moments.mean), cell)
        for key, cell in survey.cells.items()
        if key[:3] == ("spike", "value", stack) and cell.moments.count.any()
    ]
    return sorted(found, key=lambda level: (level.layer, level.site == "middle"))


def fixed_pattern(
    survey: Survey, kind: FindingKind, *, bound: tuple[str, float], habit: str, advice: str
) -> Iterator[Finding]:
    """Yield findings on heads in which the first measure that `kind` reads is above `bound`, a named threshold."""
    measure = kind.reads[0]
    name, threshold = bound
    for grid in grids(survey, measure):
        if grid.site != "self":  # in cross-attention, equal indices are not the same token
            continue
        uniform = uniform_attention(survey, grid.stack, grid.site)
        bar = raised(threshold, uniform)
        mask = grid.means > bar
        pairs = grid.chosen(mask)
        if not pairs:
            continue
        first = grid.strongest(mask)
        depths = sorted({layer for layer, _ in pairs})
        yield Finding(
            kind=kind.name,
            severity="note",
            stack=grid.stack,
            layers=tuple(depths),
            heads=pairs,
            sentence=(
                f"In {grid.portion(pairs)} {habit}: {heads(first)} (up to {percent(grid.means[first[0]])})."
                f"{aside(threshold, uniform)}"
            ),
            value=float(grid.means[first[0]]),
            threshold=bar,
            threshold_name=name,
            citation=kind.citation,
            advice=advice,
            details={"measure": measure, "site": grid.site},
        )
