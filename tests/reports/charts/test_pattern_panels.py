"""Maps of a pattern and a head: pooling keeps single entries, pictures hold the ramp, errors are logarithmic."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.io import imread

from attnscope.commands.compile.chart import COLOURS, error_rows, pattern_panels, pooled
from attnscope.commands.compile.words import LARGEST_SIDE, pooling_words
from attnscope.reports.colours import sequential
from attnscope.reports.export import save
from attnscope.reports.theme import specification


def blocks(array: np.ndarray, step: int) -> Iterator[tuple[int, np.ndarray]]:
    return ((first, array[first : first + step]) for first in range(0, len(array), step))


@given(n=st.integers(1, 40), n_keys=st.integers(1, 40), side=st.integers(1, 20), step=st.integers(1, 40))
def test_a_cell_is_the_largest_of_its_block(n: int, n_keys: int, side: int, step: int) -> None:
    array = np.random.default_rng(0).random((n, n_keys))
    cells = pooled(blocks(array, step), n, n_keys, side)
    height, width = min(n, side), min(n_keys, side)
    slow = np.zeros((height, width))
    for i in range(n):
        for j in range(n_keys):
            at = i * height // n, j * width // n_keys
            slow[at] = max(slow[at], array[i, j])
    assert np.array_equal(cells, slow)


def test_small_patterns_are_drawn_entry_by_entry_and_large_ones_pooled() -> None:
    assert np.array_equal(pooled(blocks(np.eye(9), 4), 9, 9), np.eye(9))
    large = pooled(blocks(np.eye(1000), 300), 1000, 1000)
    assert large.shape == (LARGEST_SIDE, LARGEST_SIDE)
    assert (np.diag(large) == 1).all()  # a mean would have faded them to a quarter


def picture(document: dict[str, Any], place: int) -> np.ndarray:
    data = document["hconcat"][place]["layer"][0]["data"]
    uri = document["datasets"][data["name"]][0]["picture"]
    return np.asarray(imread(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour[1:]))


def test_pictures_hold_the_ramp_and_error_is_logarithmic() -> None:
    target, realised = np.eye(4), np.eye(4)
    error = np.full((4, 4), 1e-3)
    error[0, 1], error[0, 2], error[0, 3] = 1e-9, np.nan, 1.0
    document = specification(pattern_panels(target, realised, error, size=(4, 4), title="t", subtitle="s"))
    ramp = sequential("light", COLOURS)
    maps = [picture(document, place)[..., :3] for place in range(3)]
    step = len(maps[0]) // 4
    shown = [one[step // 2 :: step, step // 2 :: step] for one in maps]
    assert shown[0].shape == (4, 4, 3)
    assert shown[0][0, 0].tolist() == rgb(ramp[-1])
    assert shown[0][0, 1].tolist() == rgb(ramp[0])
    assert shown[2][1, 1].tolist() == rgb(ramp[round((COLOURS - 1) / 2)])  # 1e-3 is half-way from 1e-6 to 1
    assert [shown[2][0, j].tolist() for j in (1, 2, 3)] == [rgb(ramp[0]), rgb(ramp[-1]), rgb(ramp[-1])]
    legend = document["hconcat"][2]["layer"][1]["encoding"]["color"]["scale"]
    assert (legend["type"], legend["domain"]) == ("log", [1e-6, 1])
    assert document["title"]["subtitle"] == ["s"]


def test_axes_count_queries_and_keys_of_the_pattern() -> None:
    cells = np.zeros((256, 128))
    document = specification(pattern_panels(cells, cells, cells, size=(4096, 128)))
    encoding = document["hconcat"][0]["layer"][0]["encoding"]
    assert encoding["x"]["scale"]["domain"] == [0, 128]
    assert encoding["y"]["scale"] == {"domain": [0, 4096], "nice": False, "reverse": True}
    assert document["title"]["subtitle"] == ["a cell is the largest of 16 × 1 entries"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_drawn(theme: str, tmp_path: Path) -> None:
    chart = pattern_panels(np.eye(8), np.eye(8), np.zeros((8, 8)), size=(8, 8), theme=theme)
    drawn = imread(save(chart, tmp_path / "p.png", theme=theme, scale=1.0))[..., :3].reshape(-1, 3)
    assert (drawn == rgb(sequential(theme, COLOURS)[-1])).all(axis=1).any()


def test_without_a_title_there_is_none_and_the_legend_has_the_colours_of_the_picture() -> None:
    chart = pattern_panels(np.eye(8), np.eye(8), np.zeros((8, 8)), size=(8, 8), theme="dark", title="")
    document = specification(chart, "page")
    assert "title" not in document
    legend = document["hconcat"][0]["layer"][1]["encoding"]["color"]["scale"]
    assert legend["range"] == list(sequential("dark"))


def test_rows_of_the_error_can_be_read() -> None:
    error = np.zeros((4, 6))
    error[1, 5], error[2, 0] = 0.25, np.nan
    assert [row["label"] for row in error_rows(error, (4, 6))] == [
        "query 0: largest error 0 at key 0",
        "query 1: largest error 0.25 at key 5",
        "query 2: largest error not finite, at key 0",
        "query 3: largest error 0 at key 0",
    ]
    many = error_rows(np.eye(256), (512, 1024))
    assert len(many) == 64
    assert many[1]["label"] == "queries 8 to 15: largest error 1 at about key 16"
    assert (many[-1]["from"], many[-1]["to"], many[-1]["right"]) == (504, 512, 1024)


def test_maps_stand_below_each_other_where_there_is_no_room() -> None:
    cells = np.eye(8)
    assert "hconcat" in specification(pattern_panels(cells, cells, cells, size=(8, 8), width=600))
    assert "vconcat" in specification(pattern_panels(cells, cells, cells, size=(8, 8), width=326))


def test_what_a_cell_stands_for() -> None:
    assert pooling_words((256, 12)) == ""
    assert pooling_words((600, 12)) == "a cell is the largest of 3 × 1 entries"
