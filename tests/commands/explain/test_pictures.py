"""Pictures, sounds and continuations: their drawings, sentences, page and terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from attnscope.commands.explain.conclusions import shortest_half
from attnscope.commands.explain.pictures import MOST_COLUMNS, matrices, patches, sound
from attnscope.commands.explain.record import Explanation
from attnscope.commands.explain.words import document
from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError
from attnscope.reports.page import document_page
from attnscope.reports.terminal import print_record
from tests.reports.sample_explanation import sample_explanation, sample_scene


def test_patches_are_in_rows_and_columns_without_leading_tokens() -> None:
    found = sample_scene()
    drawing = patches(found.inputs[0], found.methods[0].scores[0])
    assert drawing is not None
    assert [(cell.x, cell.y) for cell in drawing.cells] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert [cell.opacity for cell in drawing.cells] == [0, 0.5, 0.25, 1, 0.125, 0.125]
    assert [cell.against for cell in drawing.cells].index(True) == 2
    assert drawing.caption == "2 x 3 patches; the largest score is 2. 43% of all scores belong to leading tokens."
    assert patches(found.inputs[2], found.methods[0].scores[2]) is None


def test_bars_of_a_sound_end_where_the_sound_ends() -> None:
    found = sample_scene()
    drawing = sound(found.inputs[1], found.methods[0].scores[1])
    assert drawing is not None
    assert len(drawing.cells) == 8
    assert drawing.cells[3].reading == "1.50 to 2.00 s: +4, 100% of the largest"
    ticks = ["0 s", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4"]
    assert [label.text for label in drawing.labels] == ticks
    assert drawing.labels[-1].x == 1000
    assert drawing.caption.endswith("20% of all scores belong to the silence after the end.")


def test_shortest_half_of_a_sound() -> None:
    assert shortest_half([0.0, 1.0, 4.0, 1.0, 0.0]) == (2, 3)
    assert shortest_half([1.0] * 4) == (0, 2)
    assert shortest_half([0.0, 0.0, 2.0, 2.0, 0.0, 3.0]) == (2, 4)
    sentences = sample_scene().sentences()
    assert "By gradient x input, half of the sound's effect lies between 1.50 and 2.00 s." in sentences


def test_matrix_has_a_row_for_every_token_that_followed() -> None:
    found = sample_scene()
    of_picture, of_sound, of_text = matrices(found, "gradient_input")
    assert [label.text for label in of_text.labels] == ["one", "two", "a", "word", "<b>"]
    assert [label.turned for label in of_text.labels] == [False, False, True, True, True]
    assert [cell.opacity for cell in of_text.cells] == [0.5, 1, 1] * 2  # each row by its own largest
    assert [cell.against for cell in of_text.cells] == [False, False, True, True, True, False]
    assert not any(label.turned for label in of_sound.labels)
    assert of_sound.labels[-1].text == "4"
    assert [label.text for label in of_picture.labels[:2]] == ["one", "two"]
    assert matrices(found, "relevance") == ()
    assert list(found.matrix("gradient_input")["1  two"]) == [-2 * n for row in found.methods[0].scores for n in row]
    with pytest.raises(RefusalError, match="This explanation has no matrix by 'relevance'"):
        found.matrix("relevance")
    with pytest.raises(RefusalError, match="This explanation has no continuation"):
        sample_explanation().matrix("relevance")


def test_matrix_of_many_tokens_has_columns_for_those_that_did_most() -> None:
    found = sample_explanation(tokens=100, methods=1)
    step = sample_scene().steps[0]
    numbers = tuple(float(n in (3, 97)) + n / 1e4 for n in range(100))
    found = dataclasses.replace(found, steps=(dataclasses.replace(step, methods=("relevance",), scores=((numbers,),)),))
    (drawing,) = matrices(found, "relevance")
    assert sum(label.turned for label in drawing.labels) == MOST_COLUMNS
    assert drawing.caption.endswith(f"Shown are {MOST_COLUMNS} of 100 tokens.")


def test_page_and_terminal_show_pictures_sounds_and_matrices() -> None:
    found = sample_scene()
    page = document_page(document(found), "explain")
    assert page == document_page(document(found), "explain")
    assert "Which part of the picture decided in a model?" in page
    assert page.count('data-reading="patch ') == 2 * 6
    assert "<b>" not in page.split("<main")[1]
    assert page.count("to what followed</h4>") == 3
    for colour in (None, "truecolor"):
        file = io.StringIO()
        print_record(found, console=Console(width=80, file=file, color_system=colour, force_terminal=bool(colour)))
        assert "2 x 3 patches" in file.getvalue()
        assert "▇" in file.getvalue() or "█" in file.getvalue()


def test_inconsistent_record_is_refused() -> None:
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
