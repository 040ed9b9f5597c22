"""The page of the atlas: the document, and a sortable table with one row and one small map for each model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attnscope.commands.atlas.record import Atlas, Entry, EntryStack
from attnscope.commands.atlas.words import document, sink_words, size_words, spike, spike_words
from attnscope.core.words import numeral, percent
from attnscope.reports.colours import MISSING, STEPS, strokes
from attnscope.reports.page import document_page


@dataclass(frozen=True)
class _Row:
    entry: Entry
    maps: tuple[tuple[str, str], ...]  # the name of a stack, and its map as SVG
    cells: tuple[tuple[str, float | str], ...]  # the text of a cell, and what it is sorted by


def render(atlas: Atlas) -> str:
    """Return the page."""
    content = document(atlas)
    kept = [section for section in content.sections if section.title != "Models"]
    return document_page(
        type(content)(**{**vars(content), "sections": tuple(kept)}),
        "atlas",
        template="atlas.html",
        styles=("atlas.css",),
        scripts=("atlas.js",),
        models=[_row(entry) for entry in atlas.entries],
    )


def _row(entry: Entry) -> _Row:
    return _Row(
        entry,
        tuple((stack.name, drawn) for stack in entry.stacks if (drawn := _map(stack))),
        (
            (entry.family, entry.family),
            (", ".join(dict.fromkeys(stack.kind for stack in entry.stacks)), entry.stacks[-1].kind),
            (size_words(entry.parameters), float(entry.parameters)),
            (_losses(entry), _number(entry.loss)),
            (", ".join(map(sink_words, entry.stacks)), sink_words(entry.stacks[-1]).rstrip("%").rjust(4)),
            (spike_words(entry), spike(entry)),
            ("–" if math.isnan(entry.inside) else percent(entry.inside), _number(entry.inside)),
        ),
    )


def _losses(entry: Entry) -> str:
    """Return `4.09 (6.57)`: the loss, and that of token frequencies."""
    if math.isnan(entry.loss):
        return "–"
    return numeral(entry.loss, 3) + ("" if math.isnan(entry.unigram) else f" ({numeral(entry.unigram, 3)})")


def _map(stack: EntryStack) -> str:
    """Draw attention to the first token: blocks to the right, heads downwards."""
    grid = stack.grid("sink_mass", "value", "self")
    if grid is None or not len(grid.values):
        return ""
    width = max(len(row) for row in grid.means)
    shares = np.full((len(grid.means), width), np.nan)
    for block, row in enumerate(grid.means):
        shares[block, : len(row)] = row
    steps = np.where(np.isfinite(shares), np.rint(np.clip(shares, 0, 1) * (STEPS - 1)), MISSING)
    return strokes(np.nan_to_num(steps, nan=MISSING).astype(int), "q")


def _number(value: float) -> float:
    return -1.0 if math.isnan(value) else value
