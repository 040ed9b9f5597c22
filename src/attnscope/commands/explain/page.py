"""The page of an explanation: the text with its tokens shaded and a switch between methods, charts, and numbers.

Every token carries its number as a sentence, shown under the pointer and on arrow keys. Without scripts and on paper,
all methods are shown one below another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from attnscope.commands.explain.chart import MOST_TOKENS, explanation_map, length_caption, length_map, reach
from attnscope.commands.explain.pictures import Matrix, matrices
from attnscope.commands.explain.record import Explanation, Scored
from attnscope.commands.explain.shading import ShadedInput, shaded, two_sided
from attnscope.commands.explain.words import (
    decides,
    last_written,
    named_by,
    read_words,
    sentences,
    token_words,
    verdict,
)
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.core.words import numeral
from attnscope.reports.document import rows
from attnscope.reports.export import drawn_to_fit
from attnscope.reports.page import page
from attnscope.reports.words import beginning_words

TOP = 10
_HEADINGS = {"picture": "Which part of the picture decided?", "sound": "Which moments decided?"}
_HOW = {
    "picture": "The more orange a patch, the more it did for the answer; blue is against it",
    "sound": "The higher a bar, the more that moment did for the answer; blue is against it",
}


@dataclass(frozen=True)
class Panel:
    """One method on the page."""

    name: str
    title: str
    inputs: tuple[ShadedInput, ...]
    two_sided: bool
    reach: str
    adds_up: str
    top: tuple[tuple[str, str, str], ...]  # place, word, number
    more: int  # tokens equal to the last of these
    matrices: tuple[Matrix, ...] = ()

    @property
    def wide(self) -> bool:
        """Whether a drawing keeps its width on a narrow screen."""
        return bool(self.matrices) or any(one.strip for one in self.inputs)


class Often(NamedTuple):
    """A token that several methods name."""

    word: str
    place: str
    votes: int


def render(found: Explanation) -> str:
    """Return the page. Equal records give equal pages."""
    picture = drawn_to_fit(
        lambda width: explanation_map(found, width=width),
        "tokens-by-methods",
        title="Tokens by methods",
        caption=_caption(found),
        summary="How much every token did by each method.",
    )
    lengths = None
    if found.lengths is not None:
        lengths = drawn_to_fit(
            lambda width: length_map(found, width=width),
            "tokens-by-length",
            title="Path contribution by length",
            caption=length_caption(found),
            summary="What every token sends to the answer, by how many heads it passes.",
        )
    _, explained, *rest = sentences(found)
    several = len(found.inputs) > 1
    heading, lines = _agreement(found)
    return page(
        "explanation.html",
        verdict=verdict(found),
        figures=[picture, *([lengths] if lengths else [])],
        lengths=lengths,
        styles=("explanation.css",),
        scripts=("explanation.js",),
        data=found,
        explained=explained,
        findings=rest,
        panels=[_panel(found, one, several) for one in found.methods],
        several=several,
        read_words=read_words(found),
        written=last_written(found),
        heading_words=_HEADINGS.get(read_words(found), "Which tokens decided?"),
        how_words=_HOW.get(read_words(found), "The darker a token, the more it did"),
        often=_often(found, several),
        voters=sum(decides(one) for one in found.voting),
        picture=picture,
        heading=heading,
        lines=lines,
        begun=beginning_words(found.provenance),
        provenance=rows(found.provenance),
    )


def _panel(found: Explanation, method: Scored, several: bool) -> Panel:
    total = f"All tokens together: {signed(method.total)}."
    sums = f"{total} They add up to {method.adds_up}." if method.adds_up else total
    return Panel(
        name=method.name,
        title=method.title,
        inputs=shaded(found, method),
        two_sided=two_sided(method),
        reach=numeral(reach(method)),
        adds_up=sums,
        top=tuple(
            (token_words(token, several), visible(token.word), signed(token.score))
            for token in found.top(method.name, TOP)
        ),
        more=found.unlisted(method.name, TOP),
        matrices=matrices(found, method.name),
    )


def _often(found: Explanation, several: bool) -> list[Often]:
    """Return tokens among the first three of two methods or more."""
    words = {(read.name, place): word for read in found.inputs for place, word in enumerate(read.tokens)}
    return [
        Often(visible(words[name, place]), f"{name} {place}" if several else str(place), votes)
        for (name, place), votes in named_by(found, few=3).most_common(TOP)
        if votes > 1
    ]


def _agreement(found: Explanation) -> tuple[list[str], list[list[str]]]:
    """Return rank correlations as heading and rows, empty for one method."""
    known = found.agreement()
    names = [one.name for one in found.voting]
    titles = {one.name: one.title for one in found.voting}
    if len(names) < 2:
        return [], []

    def cell(one: str, other: str) -> str:
        if one == other:
            return "1"
        value = known.get((one, other), known.get((other, one), math.nan))
        return numeral(round(value, 2)) if math.isfinite(value) else "–"

    return ["", *titles.values()], [[titles[one], *(cell(one, other) for other in names)] for one in names]


def _caption(found: Explanation) -> str:
    tokens = sum(len(one.tokens) for one in found.inputs)
    some = (
        f" The {MOST_TOKENS} of {tokens} tokens that did most by any method are shown." if tokens > MOST_TOKENS else ""
    )
    return f"Each method is divided by its largest number: units differ, so only the order of tokens compares.{some}"
