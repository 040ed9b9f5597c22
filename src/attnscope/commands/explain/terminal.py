"""An explanation in a terminal: the verdict, the text with its tokens shaded, and the ten that did most."""

from __future__ import annotations

from rich.color import Color
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnscope.commands.explain.record import Explanation, Scored, Token
from attnscope.commands.explain.shading import bar_lines, patch_lines, shaded
from attnscope.commands.explain.words import (
    decides,
    in_words,
    last_written,
    read_words,
    sentences,
    token_words,
    verdict,
)
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.core.words import clean
from attnscope.reports.colours import diverging, ink, sequential
from attnscope.reports.terminal import BLOCKS, opening, section
from attnscope.reports.words import beginning_words

TOP, FEW_SENTENCES, FEW_NOTES, MOST_TOKENS = 10, 2, 2, 400
COLUMNS, WIDTH = 3, 23  # methods beside each other, and letters for each


def show(found: Explanation, *, verbose: bool = False) -> RenderableType:
    """Return the screen: the shading of one method (with `verbose`, of all), and the top ten tokens."""
    lines = sentences(found)[1:]
    about = ", ".join((f"{found.model}: {visible(found.target)}", *beginning_words(found.provenance)))
    chosen = found.methods if verbose else tuple([*filter(decides, found.methods), *found.methods][:1])
    parts: list[RenderableType] = [
        *opening(verdict(found), about),
        Text(""),
        *(Text(clean(sentence)) for sentence in (lines if verbose else lines[:FEW_SENTENCES])),
        *(Text(clean(note), style="dim") for note in (found.notes if verbose else found.notes[:FEW_NOTES])),
    ]
    for method in chosen:
        parts += [section(f"The {read_words(found)}, by {in_words(method)}"), *_text(found, method)]
    parts.append(section(f"The {TOP} tokens that did most"))
    shown = found.methods if verbose else tuple(one for one in found.voting if decides(one))[:COLUMNS] or chosen
    for begin in range(0, len(shown), COLUMNS):
        parts += [Text("")] * bool(begin) + [_table(found, shown[begin : begin + COLUMNS])]
    return Group(*parts)


def _text(found: Explanation, method: Scored) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for read in shaded(found, method):
        drawn = [*patch_lines(read.overlay)] if read.overlay else [*bar_lines(read.strip)] if read.strip else []
        lines += drawn
        if drawn and not read.tokens:
            continue
        line = Text("")
        if len(found.inputs) > 1:
            line.append(f"{read.name}: ", style="dim")
        for token in read.tokens[:MOST_TOKENS]:
            ramp = diverging("light") if token.colour.startswith("d") else sequential("light")
            ground = ramp[token.step]
            letters, behind = Color.parse(ink(ground)), Color.parse(ground)
            style = Style(color=letters, bgcolor=behind, underline=token.asked, italic=token.followed)
            line.append(clean(token.text.replace("\n", "⏎")), style=style)
        if len(read.tokens) > MOST_TOKENS:
            line.append(f" ... and {len(read.tokens) - MOST_TOKENS} more", style="dim")
        elif read.name == found.inputs[-1].name:
            line.append(clean(last_written(found)), style="dim underline")
        lines.append(line)
    return lines


def _table(found: Explanation, shown: tuple[Scored, ...]) -> Table:
    """Return the tokens that did most by each method, with a bar of one letter for consoles without colour."""
    several = len(found.inputs) > 1
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    for _ in shown:
        table.add_column(no_wrap=True, overflow="ellipsis", width=WIDTH)
    table.add_row("", *(Text(one.title, style="dim") for one in shown))
    placed = frozenset(read.name for read in found.inputs if read.kind != "text")
    tops = [found.top(one.name, TOP) for one in shown]
    for rank in range(max(map(len, tops))):
        cells = [_cell(top[rank], top[0].score, several, placed) if rank < len(top) else Text("") for top in tops]
        table.add_row(str(rank + 1), *cells)
    more = [found.unlisted(one.name, TOP) for one in shown]
    if any(more):
        table.add_row("", *(Text(f"  and {n} more, equal" if n else "", style="dim") for n in more))
    return table


def _cell(token: Token, largest: float, several: bool, placed: frozenset[str]) -> Text:
    """Return a cell; tokens of inputs in `placed` (patches, moments) already name their place."""
    share = min(max(token.score / largest, 0.0), 1.0) if largest > 0 else 0.0
    bar = BLOCKS[round(share * (len(BLOCKS) - 1))]
    place = (f" {token_words(token, several)}", "dim")
    parts = ((bar, "bold"), f" {signed(token.score)} ", clean(visible(token.word)))
    return Text.assemble(*parts) if token.input in placed else Text.assemble(*parts, place)
