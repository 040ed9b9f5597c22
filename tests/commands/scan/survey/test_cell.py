"""Cells that are built together equal cells that are built one by one, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.commands.scan.survey.cell import Cell


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("rows", [0, 5])
def test_of_many_equals_of_one_by_one(shape: tuple[int, ...], rows: int) -> None:
    """Numbers of very different sizes, NaN, infinities, zeros of both signs, and ties."""
    chance = np.random.default_rng(0)
    values = [chance.lognormal(size=(rows, *shape)) * 10.0**power for power in range(-6, 20, 5)]
    if rows:
        values[0][1], values[1][0], values[2][:], values[3][:] = np.nan, np.inf, -0.0, values[3][0]
    where = [
        {"token": chance.integers(0, 4, size=one.shape), "key": chance.integers(-3, 9, one.shape)} for one in values
    ]
    samples = np.arange(rows)
    apart = [Cell.of(one, labels, samples) for one, labels in zip(values, where, strict=True)]
    together = Cell.of_many(values, where, samples)
    assert together == apart
    assert [cell.to_json() for cell in together] == [cell.to_json() for cell in apart]
