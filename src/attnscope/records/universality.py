"""Whether keys are proved to serve every pattern, as plain data; `solvers.universality` derives the numbers."""

from __future__ import annotations

from dataclasses import dataclass

ROOM = 1 - 1e-9  # of what was asked: what computing the bounds themselves in float64 can cost is far less


@dataclass(frozen=True)
class WorstSupport:
    """What no row of `size` keys exceeds: no support, no weights within the spread, no order of summation."""

    size: int
    gap: float  # least |F| of a key beside the support
    sharpness: float  # b, by which F is multiplied
    amplitude: float  # most that the harmonics of a query add up to; no logit is larger, but for rounding
    rounding: float  # most by which storing and summing move a logit
    ratio_error: float
    leak: float


@dataclass(frozen=True)
class Universality:
    """Keys on the moment curve against all rows of up to `k` keys whose weights lie within a factor `spread`."""

    n: int
    k: int
    d: int
    dtype: str
    spread: float
    asked_ratio_error: float
    asked_leak: float
    sizes: tuple[WorstSupport, ...]
    fits: bool  # no query overflows

    @property
    def proved(self) -> bool:
        """Whether every such row has a query that the certificate accepts. False says nothing: bounds are not tight."""
        within = (
            one.ratio_error <= self.asked_ratio_error * ROOM and one.leak <= self.asked_leak * ROOM
            for one in self.sizes
        )
        return self.fits and bool(self.sizes) and all(within)

    @property
    def ratio_error(self) -> float:
        return max(one.ratio_error for one in self.sizes)

    @property
    def leak(self) -> float:
        return max(one.leak for one in self.sizes)

    @property
    def max_logit(self) -> float:
        return max(one.amplitude + one.rounding for one in self.sizes)
