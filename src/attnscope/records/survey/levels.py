"""How large the largest entry of the residual stream is, place after place: what findings about activations read.

Places stand in the order in which half-blocks write: the stream entering block 0, after its attention write, entering
block 1 (after the MLP write of block 0), and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.core.words import percent
from attnscope.records.survey.cell import Cell
from attnscope.records.survey.survey import Survey


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
