"""Values for laws: batches of ordinary, extreme and broken floats, for one number or a row of heads."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3,))

anything = st.one_of(
    st.floats(width=64),
    st.floats(-10, 10),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, float("nan"), float("inf"), 5e-324, 1e308]),
)


@st.composite
def batches(draw: st.DrawFn, amount: int = 3) -> list[np.ndarray]:
    """Several batches of one cell shape."""
    shape = draw(st.sampled_from(SHAPES))
    sizes = draw(st.lists(st.integers(0, 5), min_size=amount, max_size=amount))
    return [draw(arrays.arrays(np.float64, (size, *shape), elements=anything)) for size in sizes]
