"""Pictures, sounds and continuations as a person reads them: geometry, sentences, page and terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from attnscope.commands.explain.page import render
from attnscope.commands.explain.pictures import MOST_COLUMNS, matrices, overlay, strip
from attnscope.commands.explain.record import Explanation
from attnscope.commands.explain.words import sentences, shortest_half
from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError
from attnscope.reports.terminal import print_record
from tests.reports.sample_explanation import sample_explanation, sample_scene


def test_patches_lie_where_they_are_and_what_is_no_patch_is_apart() -> None:
    found = sample_scene()
    drawn = overlay(found.inputs[0], found.methods[0].scores[0])
    assert drawn is not None
    assert [(cell.x, cell.y) for cell in drawn.cells] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert [cell.strength for cell in drawn.cells] == ["0.000", "0.500", "0.250", "1.000", "0.125", "0.125"]
    assert [cell.side for cell in drawn.cells].index("against") == 2
    assert drawn.said == "2 x 3 patches; the largest is 2. 43% of it fell on what is no patch."
    assert overlay(found.inputs[2], found.methods[0].scores[2]) is None


def test_a_sound_ends_where_it_ends() -> None:
    found = sample_scene()
    drawn = strip(found.inputs[1], found.methods[0].scores[1])
    assert drawn is not None
    assert len(drawn.bars) == 8
    assert drawn.bars[3].reading == "1.50 to 2.00 s: +4, 100% of the largest"
    assert [tick.label for tick in drawn.ticks] == ["0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4"]
    assert drawn.ticks[-1].x == "1000.00"
    assert drawn.said.endswith("20% of it fell on the silence behind the end.")


def test_half_of_a_sound_by_hand() -> None:
    assert shortest_half([0.0, 1.0, 4.0, 1.0, 0.0]) == (2, 3)
    assert shortest_half([1.0] * 4) == (0, 2)
    assert shortest_half([0.0, 0.0, 2.0, 2.0, 0.0, 3.0]) == (2, 4)
    assert "By gradient x input half of what the sound did lies between 1.50 and 2.00 s." in sentences(sample_scene())


def test_a_matrix_has_a_row_for_every_token_that_followed() -> None:
    found = sample_scene()
    picture, sound, text = matrices(found, "gradient_input")
    assert [label.text for label in text.rows] == ["one", "two"]
    assert [label.text for label in text.columns] == ["a", "word", "<b>"]
    assert [cell.strength for cell in text.cells] == ["0.50", "1.00", "1.00"] * 2  # each row by its own largest
    assert [cell.side for cell in text.cells] == ["for", "for", "against", "against", "against", "for"]
    assert not sound.columns
    assert [tick.label for tick in sound.ticks][-1] == "4"
    assert len(picture.rows) == 2
    assert matrices(found, "relevance") == ()
    assert list(found.matrix("gradient_input")["1  two"]) == [-2 * n for row in found.methods[0].scores for n in row]
    with pytest.raises(RefusalError, match="There is no matrix by 'relevance'"):
        found.matrix("relevance")
    with pytest.raises(RefusalError, match="There is no continuation"):
        sample_explanation().matrix("relevance")


def test_of_many_tokens_those_that_did_most_are_columns() -> None:
    found = sample_explanation(tokens=100, methods=1)
    step = sample_scene().steps[0]
    numbers = tuple(float(n in (3, 97)) + n / 1e4 for n in range(100))
    found = dataclasses.replace(found, steps=(dataclasses.replace(step, methods=("relevance",), scores=((numbers,),)),))
    (drawn,) = matrices(found, "relevance")
    assert len(drawn.columns) == MOST_COLUMNS
    assert drawn.said.endswith(f"Shown are {MOST_COLUMNS} of 100 tokens.")


def test_page_and_terminal_show_all_of_it() -> None:
    found = sample_scene()
    page = render(found)
    assert page == render(found)
    assert "Which part of the picture decided?" in page
    assert page.count('class="patch') == 2 * 6
    assert "<b>" not in page.split("<main")[1].replace('<b class="word">', "")
    assert page.count('class="matrix"') == 3
    for colour in (None, "truecolor"):
        file = io.StringIO()
        print_record(found, console=Console(width=80, file=file, color_system=colour, force_terminal=bool(colour)))
        assert "2 x 3 patches" in file.getvalue()
        assert "▇" in file.getvalue() or "█" in file.getvalue()


def test_a_record_that_does_not_hold_together_is_refused() -> None:
    found = sample_scene()
    assert Explanation.from_json(found.to_json()) == found
    data = found.to_json()
    for change, says in (
        ({"grid": [9, 9]}, "grid"),
        ({"shown": "https://example.org/picture.png"}, "shown"),
    ):
        inputs = [{**data["inputs"][0], **change}, *data["inputs"][1:]]
        with pytest.raises(FieldError, match=says):
            Explanation.from_json({**data, "inputs": inputs})
    with pytest.raises(FieldError, match="steps"):
        Explanation.from_json({**data, "steps": [{**data["steps"][0], "scores": [[[1.0]]]}]})
