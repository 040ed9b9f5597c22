"""The text with its arcs: positions of tokens, ends of arcs, and that no two arcs cross."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import chain, combinations, pairwise

import numpy as np
import pytest

from attnscope.commands.paths.arcs import CHIP, MOST_ARCS, MOST_TOKENS, Arc, Strip, columns, strip
from attnscope.commands.paths.record import Chain, PathReport
from attnscope.reports.export import WIDTHS
from tests.reports.sample_paths import sample_paths

FITS = pytest.mark.parametrize("width", WIDTHS.values())


def sample(tokens: int, sources: list[int], position: int | None, seed: int = 0) -> PathReport:
    """Return paths from these tokens of a text with words of one to seven letters."""
    rng = np.random.default_rng(seed)
    words = tuple(f" {'w' * int(n)}" for n in rng.integers(1, 7, tokens))
    chains = tuple(
        Chain(float(v), ((n % 6, 0),), source, words[source], float(v) / 2)
        for n, (source, v) in enumerate(zip(sources, rng.normal(size=len(sources)), strict=True))
    )
    return replace(sample_paths(), tokens=words, top=chains, position=position)


def points(stroke: str) -> list[tuple[float, float]]:
    """Return points along a line of quarter ellipses and straight parts."""
    found = re.findall(r"([MAH])([^MAH]*)", stroke)
    path: list[tuple[float, float]] = []
    for kind, text in found:
        numbers = [float(n) for n in text.split()]
        if kind == "M":
            path.append((numbers[0], numbers[1]))
        elif kind == "H":
            path.append((numbers[0], path[-1][1]))
        else:
            (x, y), (to_x, to_y) = path[-1], (numbers[5], numbers[6])
            up = to_y < y  # a quarter ellipse is vertical at its token
            for t in np.linspace(0, math.pi / 2, 24)[1:]:
                share = (1 - math.cos(t), math.sin(t)) if up else (math.sin(t), 1 - math.cos(t))
                path.append((x + (to_x - x) * share[0], y + (to_y - y) * share[1]))
    return path


def crossings(first: Arc, second: Arc) -> int:
    def sides(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    count = 0
    for one in map(points, first.strokes):
        for other in map(points, second.strokes):
            for a, b in pairwise(one):
                for c, d in pairwise(other):
                    count += sides(a, b, c) * sides(a, b, d) < 0 and sides(c, d, a) * sides(c, d, b) < 0
    return count


def tokens_of(found: Strip) -> dict[int | None, tuple[float, float, float]]:
    return {chip.index: (chip.x, chip.x + chip.width, chip.y) for chip in found.chips}


@FITS
@pytest.mark.parametrize(
    ("tokens", "sources", "position"),
    [
        (5, [4, 3, 1], 4),
        (16, [15, 14, 13, 14, 5, 14, 0, 7, 1, 13], 15),
        (40, [12, 1, 11, 33, 26, 24, 39, 12, 12, 9], 39),
        (40, [12, 1, 11, 33, 26, 24, 20, 12, 12, 39], 20),  # a bidirectional model
        (40, [12, 1, 11, 33, 26, 24, 39, 12, 12, 0], 0),
        (100, [99, 98, 97, 50, 2, 1, 0, 60, 61, 62], 99),
        (1, [0, 0, 0], 0),
    ],
)
def test_arcs_begin_and_end_at_their_tokens_and_never_cross(
    tokens: int, sources: list[int], position: int, width: int
) -> None:
    found = strip(sample(tokens, sources, position), width)
    places = tokens_of(found)
    assert [arc.source for arc in found.arcs] == sources
    for arc in found.arcs:
        lines = [points(stroke) for stroke in arc.strokes]
        (x, y), (left, right, top) = lines[0][0], places[arc.source]
        assert left < x < right
        assert y == pytest.approx(top)
        (x, y), (left, right, top) = lines[-1][0 if len(lines) > 1 else -1], places[position]
        assert left < x < right
        assert y == pytest.approx(top)
        if len(lines) > 1:  # through the edges of both rows, on the sides that face each other
            edges = (float(width), 0.0) if arc.source < position else (0.0, float(width))
            assert tuple(line[-1][0] for line in lines) == edges
        assert all(0 <= x <= width and 0 <= y <= found.height for x, y in chain(arc.badges, *lines))
    assert not [pair for pair in combinations(found.arcs, 2) if crossings(*pair)]


@FITS
def test_tokens_stand_in_order_without_overlap(width: int) -> None:
    found = strip(sample(90, [3, 80], 89), width)
    assert [chip.index for chip in found.chips] == list(range(90))
    for one, after in pairwise(found.chips):
        assert (one.row == after.row and one.x + one.width < after.x) or (
            after.row == one.row + 1 and after.y >= one.y + CHIP
        )
    assert all(chip.x + chip.width <= width and chip.letters <= chip.width for chip in found.chips)
    assert found.height >= found.chips[-1].y + CHIP


def test_width_is_what_the_token_sends_and_colour_its_sign() -> None:
    report = sample(8, [1, 2, 3], 7)
    chains = [replace(one, of_token=v) for one, v in zip(report.top, (2.0, -1.0, 0.0), strict=True)]
    arcs = strip(replace(report, top=tuple(chains)), 600).arcs
    assert [arc.sign for arc in arcs] == ["plus", "minus", "plus"]
    thin = arcs[2].width
    assert (arcs[1].width - thin) * 2 == pytest.approx(arcs[0].width - thin, abs=0.02)


def test_readings_say_the_path_and_what_its_token_sends() -> None:
    direct, through, _ = strip(sample_paths(), 600).arcs
    assert direct.reading == "1. ' is' (token 4) → output: +2"
    assert through.reading == (
        "2. ' Italy' (token 3) → block 3 head 1 → output: +1.5; of that, +1.4 begins at this token"
    )


def test_without_a_token_that_is_asked_arcs_end_at_the_output() -> None:
    found = strip(sample(6, [0, 3, 5], None), 600)
    end = found.chips[-1]
    assert (end.kind, end.text) == ("output", "output")
    assert all(end.x < points(arc.strokes[-1])[-1][0] < end.x + end.width for arc in found.arcs)


def test_long_texts_are_shortened_to_what_matters() -> None:
    tokens = 4 * MOST_TOKENS
    found = strip(sample(tokens, [2, 300], tokens - 1), 600)
    shown = [chip.index for chip in found.chips if chip.index is not None]
    assert {2, 300, tokens - 1} <= set(shown)
    assert len(shown) < 30
    gaps = [int(re.sub(r"\D", "", chip.text)) for chip in found.chips if chip.kind == "gap"]
    assert len(gaps) == 2
    assert sum(gaps) + len(shown) == tokens
    assert not any(chip.kind == "gap" for chip in strip(sample(MOST_TOKENS, [2], 5), 600).chips)


def test_only_the_largest_are_drawn_and_tokens_that_are_not_known_begin_nothing() -> None:
    report = sample(30, list(range(20)), 29)
    assert [arc.number for arc in strip(report, 600).arcs] == list(range(1, MOST_ARCS + 1))
    beyond = replace(report, top=(replace(report.top[0], position=30), report.top[1]))
    assert [arc.number for arc in strip(beyond, 600).arcs] == [2]


def test_words_take_the_room_they_need() -> None:
    assert [columns(text) for text in ("abc", "漢字", "e\N{COMBINING ACUTE ACCENT}", "")] == [3, 4, 1, 0]
    report = replace(sample(4, [1], 3), tokens=("x" * 200, "  ", "\n", "漢" * 50))
    found = strip(report, 326)
    assert found.chips[1].text == "␣␣"
    assert found.chips[2].text == "\\n"
    assert all(chip.width <= 326 for chip in found.chips)
