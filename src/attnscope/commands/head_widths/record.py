"""How wide the heads of a model would have to be for what they attend to on real texts, beside how wide they are.

found.heads            one `HeadWidth` each: its head_dim, the widths found text by text, what is proved from below
found.idle, found.cramped
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from attnscope import __version__
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

IDLE = 8  # a head is idle where a head this many times narrower was found for every text


@dataclass(frozen=True)
class HeadWidth:
    """`widths` and `bounds` go by text: the narrowest head found for its pattern (None: none in the time given), and
    the width that no head can go below. `held` is the share of its attention that the k keys of a row have, on average.
    """

    stack: str
    layer: int
    head: int
    head_dim: int
    widths: tuple[int | None, ...]
    bounds: tuple[int, ...]
    held: float

    @property
    def needs(self) -> int | None:
        """Return the width that is enough for every text, or None where one of them has no width."""
        widths = [width for width in self.widths if width is not None]
        return max(widths) if widths and len(widths) == len(self.widths) else None

    @property
    def proved(self) -> int:
        return max(self.bounds, default=1)


@dataclass(frozen=True, repr=False)
class HeadWidths(Record):
    """What `attnscope capacity --model` found."""

    KIND: ClassVar[str] = "head_widths"
    COMMAND: ClassVar[str] = "capacity --model"
    FILE: ClassVar[str] = "head_widths.json"

    model: str
    k: int
    texts: int
    tokens: tuple[int, ...]
    dtype: str
    ratio_error: float
    leak: float
    heads: tuple[HeadWidth, ...]
    seconds: float
    interrupted: bool = False
    attnscope: str = __version__

    @property
    def measured(self) -> tuple[HeadWidth, ...]:
        return tuple(head for head in self.heads if head.needs is not None)

    @property
    def idle(self) -> tuple[HeadWidth, ...]:
        """Return heads that could be `IDLE` times narrower, on these texts."""
        return tuple(head for head in self.measured if IDLE * (head.needs or 0) <= head.head_dim)

    @property
    def cramped(self) -> tuple[HeadWidth, ...]:
        """Return heads no wider than the narrowest head found for their patterns."""
        return tuple(head for head in self.measured if (head.needs or 0) >= head.head_dim)

    def table(self) -> pandas.DataFrame:
        """Return one row for each head."""
        import pandas

        columns = ["stack", "layer", "head", "head_dim", "needs", "proved", "held"]
        rows = [(one.stack, one.layer, one.head, one.head_dim, one.needs, one.proved, one.held) for one in self.heads]
        return pandas.DataFrame(rows, columns=columns).astype({"needs": "Int64"})

    def __repr__(self) -> str:
        return f"<HeadWidths of {self.model[:80]}: {len(self.measured)} of {len(self.heads)} heads, top {self.k}>"
