"""How long sequences were, and what attention without any preference would look like at that length.

A number is only remarkable next to what no preference gives: over 8 tokens under a causal mask, uniform attention
already puts a third of itself on the first key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attnscope.core.card import Card
from attnscope.core.words import percent
from attnscope.records.survey.survey import Survey

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
