"""A construction builds a head for a pattern: queries and keys whose scaled products give the pattern after softmax.

    @construction(title="Moment curve", summary=..., citation=..., universal=True, fixed_width=lambda p: 2 * p.k)
    def moment_curve(pattern, width, accuracy, rng, advance) -> Factors:

It is called with one width and returns the best factors it finds at that width, in float64. The certificate decides
whether they are good enough, and the search decides which width to try.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from attnscope.core.card import leaf_decorator, undefined

Auto = Literal["one pattern", "any pattern", "ceiling"]
"""What `compile --method auto` uses a construction for: to fit queries and keys to "one pattern", to provide keys that
serve "any pattern", or as a "ceiling": a cheap head of known width that bounds the search from above. Several
constructions may be ceilings, but each other purpose has only one."""


def _twice_k(pattern: Any) -> int:
    width: int = 2 * pattern.k
    return width


@dataclass(frozen=True)
class Construction:
    """A registered construction.

    `universal`: its keys depend only on the size and the seed, never on the pattern. `first_width(pattern)` is the
    width at which a search begins. `fixed_width(pattern)` is set for a construction that has only one width.
    `takes(pattern)` says whether it accepts a pattern.
    """

    name: str
    title: str
    summary: str
    citation: str
    universal: bool
    function: Callable[..., Any] = undefined
    first_width: Callable[[Any], int] = _twice_k
    fixed_width: Callable[[Any], int] | None = None
    auto: Auto | None = None
    takes: Callable[[Any], bool] = lambda _: True

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)


def _register(card: Construction, function: Callable[..., Any]) -> Construction:
    first = card.fixed_width or card.first_width if card.first_width is _twice_k else card.first_width
    return replace(card, function=function, first_width=first)


construction = leaf_decorator(Construction, _register)
