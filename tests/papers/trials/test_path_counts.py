"""How many paths there are: against enumeration, and in closed form."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.papers.trials.path_chains import ARCHITECTURES, path_counts


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (3, 2), (4, 3)])
def test_against_enumeration(layers: int, heads: int) -> None:
    lengths = [sum(choice > 0 for choice in path) for path in product(range(heads + 1), repeat=layers)]
    assert list(path_counts(layers, heads).counts) == [lengths.count(k) for k in range(layers + 1)]


@given(st.integers(1, 40), st.integers(1, 40))
def test_totals_are_exact(layers: int, heads: int) -> None:
    found = path_counts(layers, heads)
    assert found.total == (heads + 1) ** layers
    assert sum(found.shares) == 1
    assert found.mean_length == Fraction(heads * layers, heads + 1)


def test_named_architectures() -> None:
    assert path_counts(*ARCHITECTURES["BERT-base"]).total == 13**12
    assert path_counts(*ARCHITECTURES["GPT-3"]).total == 97**96
    assert path_counts(*ARCHITECTURES["DeiT-T"]).counts[:3] == (1, 36, 594)
    with pytest.raises(RefusalError):
        path_counts(0, 3)
