"""A construction builds a head for a pattern: queries and keys whose scaled products, through softmax, give it.

    @construction(title="Moment curve", summary=..., citation=..., universal=True, fixed_width=lambda p: 2 * p.k)
    def moment_curve(pattern, width, accuracy, rng, advance) -> Factors:

It is asked for one width and answers with the best factors it can find there, in float64, however bad they are: whether
they are good enough is for the certificate to say, and which width to ask for is for the search to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Auto = Literal["one pattern", "any pattern", "ceiling"]
"""What `compile` takes a construction for when nobody names one: to fit queries and keys to one pattern, to give keys
that serve any pattern, or as a head of known width that costs next to nothing and tells the search where to end (of
these there may be several, the others are one each)."""


@dataclass(frozen=True)
class Construction:
    """A registered construction. `universal`: its keys depend on the size and the seed alone, never on the pattern."""

    name: str
    title: str
    summary: str
    citation: str
    universal: bool
    function: Callable[..., Any]
    first_width: Callable[[Any], int]
    fixed_width: Callable[[Any], int] | None = None
    auto: Auto | None = None
    takes: Callable[[Any], bool] = lambda _: True

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)


def construction(
    *,
    title: str,
    summary: str,
    citation: str,
    universal: bool,
    first_width: Callable[[Any], int] | None = None,
    fixed_width: Callable[[Any], int] | None = None,
    auto: Auto | None = None,
    takes: Callable[[Any], bool] = lambda _: True,
) -> Callable[[Callable[..., Any]], Construction]:
    """Turn a function into a construction named like the function, which is named like its file.

    `first_width(pattern)` is where a search over widths begins (it goes up and down from there); `fixed_width(pattern)`
    belongs to a construction that has one width only. `auto` says what `compile --method auto` takes it for, and
    `takes(pattern)` whether a construction for some patterns only is for this one; others it refuses.
    """

    def register(function: Callable[..., Any]) -> Construction:
        return Construction(
            name=function.__name__,
            title=title,
            summary=summary,
            citation=citation,
            universal=universal,
            function=function,
            first_width=first_width or fixed_width or (lambda pattern: 2 * pattern.k),
            fixed_width=fixed_width,
            auto=auto,
            takes=takes,
        )

    return register
