"""Points of the trigonometric moment curve: keys that depend on their number and the width alone."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def curve(n_keys: int, width: int) -> Float[np.ndarray, "key width"]:
    """Key j is (cos t, sin t, cos 2t, sin 2t, ...) at t = 2 pi j / n; an odd width has a 0.

    Angles are reduced as integers. Divided and rounded they are off by 3 units in the last place of a number below
    2 pi, so every coordinate is right to 2^-48, which `solvers.universality` relies on.
    """
    harmonic = np.arange(1, width // 2 + 1)
    angle = 2 * np.pi * (np.arange(n_keys)[:, None] * harmonic % n_keys) / n_keys
    points = np.zeros((n_keys, width))
    points[:, 0 : 2 * len(harmonic) : 2], points[:, 1 : 2 * len(harmonic) : 2] = np.cos(angle), np.sin(angle)
    return points
