"""The record of `head_widths`: the width that the attention patterns of each head need, and the width it has.

found.heads            one `HeadWidth` each: its head_dim, and the width found and the lower bound for each text
found.idle, found.cramped
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from attnscope import __version__
from attnscope.core.ranges import AsMany, Index, Positive, Several, Share, Size
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

IDLE = 8  # a head is idle if heads this many times narrower were found for all texts


@dataclass(frozen=True)
class HeadWidth:
    """One head of a model.

    `widths` has the narrowest width found for each text (None if none was found in time), `bounds` a lower bound for
    each. `held` is the mean share of attention that the k strongest keys of a query get.
    """

    stack: str
    layer: Index
    head: Index
    head_dim: Several
    widths: tuple[Several | None, ...]
    bounds: Annotated[tuple[Several, ...], AsMany("widths")]
    held: Share

    @property
    def needs(self) -> int | None:
        """Return the largest width over texts, or None if one of them has no width."""
        widths = [width for width in self.widths if width is not None]
        return max(widths) if widths and len(widths) == len(self.widths) else None

    @property
    def proved(self) -> int:
        return max(self.bounds, default=1)


@dataclass(frozen=True, repr=False)
class HeadWidths(Record):
    """The width that each head of a model needs on a few texts."""

    KIND: ClassVar[str] = "head_widths"
    COMMAND: ClassVar[str] = "capacity --model"
    FILE: ClassVar[str] = "head_widths.json"

    model: str
    k: Several
    texts: Several
    tokens: Annotated[tuple[Several, ...], AsMany("texts")]
    dtype: str
    ratio_error: Positive
    leak: Share
    heads: tuple[HeadWidth, ...]
    seconds: Size
    interrupted: bool = False
    attnscope: str = __version__

    @property
    def measured(self) -> tuple[HeadWidth, ...]:
        return tuple(head for head in self.heads if head.needs is not None)

    @property
    def idle(self) -> tuple[HeadWidth, ...]:
        """Return heads that could be `IDLE` times narrower on these texts."""
        return tuple(head for head in self.measured if IDLE * (head.needs or 0) <= head.head_dim)

    @property
    def cramped(self) -> tuple[HeadWidth, ...]:
        """Return heads that are no wider than the narrowest head found for their patterns."""
        return tuple(head for head in self.measured if (head.needs or 0) >= head.head_dim)

    def table(self) -> pandas.DataFrame:
        """Return one row for each head."""
        import pandas

        columns = ["stack", "layer", "head", "head_dim", "needs", "proved", "held"]
        rows = [(one.stack, one.layer, one.head, one.head_dim, one.needs, one.proved, one.held) for one in self.heads]
        return pandas.DataFrame(rows, columns=columns).astype({"needs": "Int64"})

    def __repr__(self) -> str:
        return f"<HeadWidths of {self.model[:80]}: {len(self.measured)} of {len(self.heads)} heads, top {self.k}>"
