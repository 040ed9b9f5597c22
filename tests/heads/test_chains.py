"""Keys that hang together: paths, cycles, and what is neither."""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.heads.generate import union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.heads.reduction import Chain, chains


def pairs(*edges: tuple[int, ...], n_keys: int) -> Pattern:
    rows = np.repeat(np.arange(len(edges)), [len(edge) for edge in edges])
    columns = np.concatenate([np.array(edge) for edge in edges])
    return Pattern.of(rows, columns, np.ones(len(rows)), n=len(edges), n_keys=n_keys, normalise=True)


def test_a_path_a_cycle_and_a_key_of_its_own() -> None:
    found = chains(pairs((0, 3), (3, 1), (2, 4), (4, 5), (5, 2), (6,), n_keys=8))
    assert found == (Chain((0, 3, 1), False), Chain((6,), False), Chain((7,), False), Chain((2, 4, 5), True))


def test_a_pair_asked_for_twice_is_a_path() -> None:
    assert chains(pairs((0, 1), (1, 0), n_keys=2)) == (Chain((0, 1), False),)


def test_three_partners_or_three_keys_are_no_chain() -> None:
    assert chains(pairs((0, 1), (0, 2), (0, 3), n_keys=4)) is None
    assert chains(window(8, 3)) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_union_of_two_permutations_is_cycles_and_neighbours_share_a_row(seed: int) -> None:
    pattern = union_of_permutations(50, 2, seed)
    found = chains(pattern)
    assert found is not None
    assert sorted(key for part in found for key in part.keys) == list(range(50))
    asked = {frozenset(map(int, row)) for row in pattern.columns.reshape(50, 2)}
    walked = {
        frozenset(pair)
        for part in found
        for pair in zip(part.keys, part.keys[1:] + part.keys[:1] * part.closed, strict=False)
    }
    assert walked == asked
