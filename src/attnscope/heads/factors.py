"""Factors: the queries and keys a construction found, in float64, before they are rounded and certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Factors:
    """Logits are `queries @ keys.T`: no scale, no mask. `notes` is what the construction has to say about itself."""

    queries: Float[np.ndarray, "row width"]
    keys: Float[np.ndarray, "key width"]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return int(self.queries.shape[1])
