"""Lower bounds on the width of a head as plain data; `heads.bounds` proves them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Bound:
    """`width` is needed, for the reason in `statement`. `proves`: for this very pattern, at this accuracy."""

    name: str
    width: int
    proves: bool
    statement: str
    citation: str


@dataclass(frozen=True)
class Bounds:
    """All bounds, and the floor under the product of the longest query and the longest key (as logits see them)."""

    bounds: tuple[Bound, ...]
    logit_floor: float

    @property
    def best(self) -> Bound:
        """The largest bound that proves: a head of this width is proved minimal."""
        return max((bound for bound in self.bounds if bound.proves), key=lambda bound: bound.width)

    def __getitem__(self, name: str) -> Bound:
        return next(bound for bound in self.bounds if bound.name == name)

    def to_json(self) -> dict[str, Any]:
        return {
            "lower_bound": self.best.width,
            "lower_bound_reason": self.best.statement,
            "logit_floor": self.logit_floor,
            "bounds": [asdict(bound) for bound in self.bounds],
        }
