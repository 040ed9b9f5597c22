"""Factors: the queries and keys a construction found, in float64, before they are rounded and certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Factors:
    """Logits are `queries @ keys.T`: no scale, no mask. `notes` is what the construction has to say about itself.

    `as_found`: ratios are within what is asked, by the keys as much as by the queries, so that rounding leaves queries
    as they are. Else they get exact ratios on the rounded keys, which rows fuller than the width do not survive.
    """

    queries: Float[np.ndarray, "row width"]
    keys: Float[np.ndarray, "key width"]
    notes: Mapping[str, Any] = field(default_factory=dict)
    as_found: bool = False

    @property
    def width(self) -> int:
        return int(self.queries.shape[1])
