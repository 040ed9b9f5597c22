"""The plain JSON form of things: what every file and every `--json` is made of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(thing: Any) -> Any:
    """The JSON form of a thing: tuples become lists, numpy scalars numbers, NaN and infinity None, others text."""
    if isinstance(thing, Mapping):
        return {str(k): plain(v) for k, v in thing.items()}
    if isinstance(thing, np.generic | np.ndarray):
        return plain(thing.tolist())
    if isinstance(thing, list | tuple):
        return [plain(v) for v in thing]
    if isinstance(thing, set | frozenset):
        return sorted((plain(v) for v in thing), key=lambda one: json.dumps(one, sort_keys=True))
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    return thing if thing is None or isinstance(thing, str | int) else str(thing)
