from __future__ import annotations

import pytest

from attnscope.core.words import blocks, count, entering, heads, number, percent, ranges


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (22552.4, "22,552"),
        (101.3, "101"),
        (22.34, "22.3"),
        (0.8611, "0.861"),
        (0.00412, "0.00412"),
        (6e-5, "6e-5"),
        (0.0, "0"),
        (-5.0, "-5"),
    ],
)
def test_numbers_are_rounded_sensibly(value: float, text: str) -> None:
    assert number(value) == text


def test_ranges() -> None:
    assert ranges([5, 3, 4, 0, 7, 7]) == "0, 3-5, 7"
    assert blocks([12, 13, 14]) == "blocks 12-14"
    assert blocks([3]) == "block 3"


def test_the_stream_enters_blocks_and_leaves_the_last() -> None:
    assert entering([3], 6) == "entering block 3"
    assert entering([5, 3, 4], 6) == "entering blocks 3-5"
    assert entering([4, 5, 6], 6) == "entering blocks 4-5 and after the last"
    assert entering([6], 6) == "after the last block"


def test_heads_are_named_up_to_three() -> None:
    assert heads([(0, 1)]) == "head 1 of block 0"
    assert heads([(0, 1), (2, 3)]) == "head 1 of block 0 and head 3 of block 2"
    assert heads([(0, n) for n in range(5)]).endswith("head 2 of block 0 and 2 more")


def test_counts_and_shares() -> None:
    assert count(1, "head") == "1 head"
    assert count(1200, "head") == "1,200 heads"
    assert percent(0.345) == "34%"
