"""What a certificate says of a head: worst and mean errors over rows, against what was asked.

`heads.certificate` computes one from the tensors of a head alone; this is the answer as plain data.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Certificate:
    """Worst and mean over rows, what rounding can do included. `zero_ratio` is e2 of the paper: largest zero over
    smallest non-zero of one row. `rounding` is the most by which a support logit can be off on a machine that sums
    in the stated precision, in whatever order; none where the file was written before certificates said so."""

    n: int
    k: int
    d: int
    dtype: str
    causal: bool
    ratio_error: float
    mean_ratio_error: float
    leak: float
    mean_leak: float
    zero_ratio: float
    max_logit: float
    query_norm: float
    key_norm: float
    asked_ratio_error: float
    asked_leak: float
    failing: int
    failing_rows: tuple[int, ...]
    rounding: float | None = None

    @property
    def reached(self) -> bool:
        return self.failing == 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}
