"""Heads with a fixed pattern: what findings on such heads share. Useful parts, and cheap to replace."""

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

# Means of one measure at one place as an array over layers and heads: what findings are made from.


@dataclass(frozen=True)
class Grid:
    stack: str
    site: str
    means: NDArray[np.float64]  # [layers, heads] or [layers], NaN where nothing was measured
    cells: dict[int, Cell]
    tail: str  # " of the encoder", where the model has several stacks

    @property
    def measured(self) -> int:
        """How many heads (or layers) have a number."""
        return int(np.isfinite(self.means).sum())

    def portion(self, found: Sequence[tuple[int, int]]) -> str:
        """`176 of 270 heads (blocks 12-29) of the decoder`."""
        depths = blocks(layer for layer, _ in found)
        return f"{len(found):,} of {count(self.measured, 'head')} ({depths}){self.tail}"

    def peak(self, place: tuple[int, int] | int) -> dict[str, int]:
        """Where the largest value at a place was: the number of the sequence (`sample`), and a token or key in it."""
        layer, head = place if isinstance(place, tuple) else (place, 0)
        return dict(self.cells[layer].peak.places()[head] or {})

    def chosen(self, mask: Bool[np.ndarray, "*shape"]) -> tuple[tuple[int, int], ...]:
        """The (layer, head) pairs where the mask is True, in order."""
        return tuple((int(layer), int(head)) for layer, head in np.argwhere(mask))

    def strongest(self, mask: Bool[np.ndarray, "*shape"]) -> list[tuple[int, int]]:
        """The same pairs, largest mean first."""
        return sorted(self.chosen(mask), key=lambda place: (-self.means[place], place))


def grids(survey: Survey, measure: str, part: str = "value") -> Iterator[Grid]:
    """One grid for each stack and site at which the measure was taken; none where it was not."""
    many = len(survey.stacks) > 1
    for stack, site in survey.places(measure, part):
        column = survey.column(measure, part, stack, site)
        yield Grid(stack, site, stack_means(column), column, within(stack, site, many))


def grid_at(survey: Survey, measure: str, stack: str, site: str, part: str = "value") -> Grid | None:
    return next((g for g in grids(survey, measure, part) if (g.stack, g.site) == (stack, site)), None)


# How long sequences were, and what attention without any preference would look like at that length.
#
# A number is only remarkable next to what no preference gives: over 8 tokens under a causal mask, uniform attention
# already puts a third of itself on the first key.

_EULER = 0.5772156649015329
SHORTEST = 2  # tokens: with fewer there is nothing to choose between


@dataclass(frozen=True)
class Uniform:
    """Uniform attention over `length` keys: row i sees i of them under a causal mask, else all."""

    length: float
    causal: bool

    @property
    def entropy(self) -> float:
        """The mean over rows of ln(number of keys), which no attention exceeds: ln(n!)/n under a causal mask."""
        return math.lgamma(self.length + 1) / self.length if self.causal else math.log(self.length)

    @property
    def keys(self) -> float:
        """The mean over rows of how many keys there are: no head looks at more."""
        return (self.length + 1) / 2 if self.causal else self.length

    @property
    def distance(self) -> float:
        """The largest mean distance of queries from keys: each looks at the farthest key there is.

        Under a causal mask that is the first, (n - 1)/2 away on average. Without a mask it is the farther end,
        max(i, n - 1 - i) away, whose mean is 3n/4 - 1/2 for an even n and 1/(4n) less for an odd one.
        """
        return (self.length - 1) / 2 if self.causal else 0.75 * self.length - 0.5

    @property
    def share(self) -> float:
        """The mean over rows of 1/(number of keys): what the first key gets, and also the own token.

        Under a causal mask H_n/n, with H_n = ln n + 0.5772 + 1/(2n) - 1/(12n^2) to within 1/(120n^4).
        """
        n = self.length
        if not self.causal:
            return 1 / n
        return min(1.0, (math.log(n) + _EULER + 1 / (2 * n) - 1 / (12 * n * n)) / n)


def uniform_attention(survey: Survey, stack: str, site: str) -> Uniform | None:
    """None where the length is not known.

    The length is the mean number of tokens in a sequence: of the stack where provenance says so, else of the corpus.
    Cross-attention reads the other stack, if there is just one and its tokens were counted.
    """
    stacks = [s for s in survey.provenance.get("model", {}).get("stacks", []) if isinstance(s, dict)]
    corpus = survey.provenance.get("corpus", {})
    own: dict[str, Any] = next((s for s in stacks if s.get("name") == stack), {})
    if site == "uneven":
        return None  # how many keys a query saw is not known
    if site == "self":
        tokens, causal = own.get("tokens", corpus.get("tokens")), bool(own.get("causal"))
    else:
        others = [s for s in stacks if s.get("name") != stack]
        tokens, causal = others[0].get("tokens") if len(others) == 1 else None, False
    if not corpus.get("sequences") or not tokens:
        return None
    return Uniform(max(1.0, tokens / corpus["sequences"]), causal)


def largest(survey: Survey, card: Card, stack: str, site: str) -> float | None:
    """The most that a measure can be at the length of these sequences; None where length or bound is not known."""
    known = uniform_attention(survey, stack, site)
    if known is None or card.bound is None or known.length < SHORTEST:
        return None
    found: float = getattr(known, card.bound)
    return found


def raised(threshold: float, uniform: Uniform | None) -> float:
    """A threshold for a mean share, raised on short sequences to twice what uniform attention gives.

    Twice: a head that merely averages must stay well below, also where sequences differ in length (the mean of 1/n
    over them is a little above 1/n at their mean). Where uniform attention gives half the threshold or less, which for
    0.3 under a causal mask means 26 tokens or more, nothing is raised; over four tokens or fewer no share is enough.
    """
    return threshold if uniform is None else max(threshold, 2 * uniform.share)


def aside(threshold: float, uniform: Uniform | None) -> str:
    """Why a threshold was raised, to be put behind a sentence; nothing where it was not."""
    if uniform is None or raised(threshold, uniform) == threshold:
        return ""
    bar, tokens, share = percent(raised(threshold, uniform)), f"{uniform.length:.3g}", percent(uniform.share)
    return f" The bar is {bar} because over {tokens} tokens uniform attention alone gives {share}."


# How large the largest entry of the residual stream is, place after place: what findings about activations read.
#
# Places stand in the order in which half-blocks write: the stream entering block 0, after its attention write, entering
# block 1 (after the MLP write of block 0), and so on.


@dataclass(frozen=True)
class Level:
    """The largest activation at one place between two half-blocks: its mean over sequences, and its cell."""

    layer: int
    site: str
    size: float
    cell: Cell

    @property
    def writer(self) -> tuple[int, str]:
        """The block and the half of it that wrote this state; block -1 is what comes before the first."""
        return (self.layer, "attention") if self.site == "middle" else (self.layer - 1, "MLP")

    @property
    def largest(self) -> float:
        """In any sequence."""
        return float(self.cell.moments.maximum)

    @property
    def sample(self) -> int | None:
        """The sequence in which it was seen."""
        return (self.cell.peak.places()[0] or {}).get("sample")

    def label(self, name: str) -> tuple[int, float] | None:
        """The most common label and the share of sequences that have it."""
        return self.cell.tallies[name].most_common()[0] if name in self.cell.tallies else None

    def where(self) -> str:
        """` (channel 7, token 0 in 80% of sequences)`, or nothing."""
        labels = ((name, self.label(name)) for name in ("channel", "token"))
        named = [
            f"{name} {label[0]}" + (f" in {percent(label[1])} of sequences" if label[1] < 1 else "")
            for name, label in labels
            if label
        ]
        return f" ({', '.join(named)})" if named else ""


def levels_of(survey: Survey, stack: str) -> list[Level]:
    found = [
        Level(key.layer, key.site, float(cell.moments.mean), cell)
        for key, cell in survey.cells.items()
        if key[:3] == ("spike", "value", stack) and cell.moments.count.any()
    ]
    return sorted(found, key=lambda level: (level.layer, level.site == "middle"))


def fixed_pattern(
    survey: Survey, kind: FindingKind, *, bound: tuple[str, float], habit: str, advice: str
) -> Iterator[Finding]:
    """Heads in which the first measure that `kind` reads is above a bound: name and value of a threshold."""
    measure = kind.reads[0]
    name, threshold = bound
    for grid in grids(survey, measure):
        if grid.site != "self":  # in cross-attention, equal indices are not the same token
            continue
        uniform = uniform_attention(survey, grid.stack, grid.site)
        bar = raised(threshold, uniform)
        mask = grid.means > bar
        found = grid.chosen(mask)
        if not found:
            continue
        first = grid.strongest(mask)
        depths = sorted({layer for layer, _ in found})
        yield Finding(
            kind=kind.name,
            severity="note",
            stack=grid.stack,
            layers=tuple(depths),
            heads=found,
            sentence=(
                f"In {grid.portion(found)} {habit}: {heads(first)} (up to {percent(grid.means[first[0]])})."
                f"{aside(threshold, uniform)}"
            ),
            value=float(grid.means[first[0]]),
            threshold=bar,
            threshold_name=name,
            citation=kind.citation,
            advice=advice,
            details={"measure": measure, "site": grid.site},
        )
