"""The document of an explanation: the input shaded by each method, findings, charts and numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from attnscope.commands.explain.conclusions import (
    FEW,
    conclusions,
    correlation_words,
    decides,
    in_continuation,
    named_by,
    verdict,
    voters_of,
)
from attnscope.commands.explain.measured import as_written, measured_tab, trial_section
from attnscope.commands.explain.pictures import matrices, patches, sound
from attnscope.commands.explain.record import Explanation, Input, Scored
from attnscope.commands.paths.vocabulary import exactly, quoted, signed, visible
from attnscope.core.words import numeral
from attnscope.reports.colours import STEPS
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.tabs import Drawing, Shade, ShadedText, Tab
from attnscope.reports.words import beginning_words

TOP = 10  # tokens in the table of a method
MOST_TOKENS = 36  # tokens in the map of tokens by methods
MOST_LENGTHS = 6  # lengths in the caption of the map by length
HEADINGS = {"picture": "Which part of the picture decided", "sound": "Which moments decided"}
HOW = {
    "picture": "The more orange a patch, the more it did for the answer; blue is against it",
    "sound": "The higher a bar, the more that moment did for the answer; blue is against it",
}
SOURCE = "Relevance is that of arXiv:2103.15679, computed without attention maps."
PREDICTED = "the last token of the continuation: predicted and not read, so no method scores it"


def document(found: Explanation) -> Document:
    kinds = [read.kind for read in found.inputs]
    medium = "picture" if "image" in kinds else "sound" if "sound" in kinds else "text"
    how = HOW.get(medium, "The stronger the colour of a token, the more it did")
    fits = found.trial is not None and found.trial.agreement
    compared = " The number behind a method is its rank correlation with the measured effects." if fits else ""
    tabs = (*measured_tab(found), *(tab(found, method) for method in by_agreement(found)), *_ignoring_tab(found))
    return Document(
        verdict(found),
        f"{HEADINGS.get(medium, 'Which tokens decided')} in {found.model}?",
        about=(f"{found.model} ({found.class_name}, {found.dtype})", *beginning_words(found.provenance)),
        sections=(
            Section(
                f"The {medium}",
                background=(f"{how}; point at one, or use the arrow keys, for its number.{compared}",),
                sentences=(f"The target is the {visible(found.target)}: {numeral(found.value)}.",),
                tabs=tabs,
                link=medium.capitalize(),
            ),
            *trial_section(found),
            Section("Findings", items=conclusions(found), notes=found.notes),
            Section(
                "Where methods agree",
                background=(SOURCE,),
                figures=_figures(found),
                tables=(*_often_table(found), *_agreement_table(found)),
                link="Methods",
            ),
            Section(
                f"The {TOP} tokens that did most",
                background=(f"The neutral token of integrated gradients and occlusion is {found.baseline}.",),
                tables=_top_tables(found),
                link="Numbers",
                beside=True,
            ),
        ),
        provenance=rows(found.provenance),
    )


def by_agreement(found: Explanation) -> list[Scored]:
    """Return the methods that depend on the answer, the one that fits the trial best first.

    A method that gives all tokens the same number comes last: a terminal shows only the first tab.
    """
    fits = dict(found.trial.agreement) if found.trial is not None else {}
    known = [method for method in found.methods if method.reads_answer]
    return sorted(known, key=lambda method: (not decides(method), -fits.get(method.name, -1.0)))


def _ignoring_tab(found: Explanation) -> tuple[Tab, ...]:
    """Put the methods that give the same scores for every answer into one tab."""
    ignoring = [method for method in found.methods if not method.reads_answer]
    diverging = any(map(diverges, ignoring))  # one legend for all of them
    blocks = [
        replace(block, label=f"{method.title}, {block.label}" if block.label else method.title)
        for method in ignoring
        for block in tab(found, method, diverging).blocks
    ]
    caption = "These methods give the same scores whatever the answer is, and had no part in choosing words."
    title = "Methods that ignore the answer"
    ends = ("−largest", "+largest") if diverging else ("0", "largest")
    return (Tab(title, tuple(blocks), caption=caption, ends=ends, diverging=diverging),) if blocks else ()


def tab(found: Explanation, method: Scored, diverging: bool | None = None) -> Tab:
    """Return the inputs that a method covers. Text is shaded token by token; pictures and sounds are drawn.

    Colours diverge if the method has negative scores, or as `diverging` says.
    """
    diverging = diverges(method) if diverging is None else diverging
    total = f"All tokens together: {signed(method.total)}."
    largest = numeral(method.reach)
    several = len(found.inputs) > 1
    fits = dict(found.trial.agreement) if found.trial is not None else {}
    fit = correlation_words(fits[method.name]) if method.name in fits else ""
    caption = f"{total} They add up to {method.adds_up}." if method.adds_up else total
    if fit:
        caption = f"{caption} Rank correlation with the measured effects: {fit}."
    blocks: list[ShadedText | Drawing] = []
    for read, row in zip(found.inputs, method.scores, strict=True):
        label = read.name if several else ""
        drawing = patches(read, row, label) or sound(read, row, label) if row else None
        blocks += [drawing] if drawing else []
        pieces = token_shades(found, method, read, diverging)
        if pieces:
            blocks.append(ShadedText(pieces, "" if drawing else label))
    return Tab(
        f"{method.title} ({fit})" if fit else method.title,
        (*blocks, *matrices(found, method.name)),
        caption=caption,
        ends=(f"−{largest} against", f"+{largest} for") if diverging else ("0", largest),
        diverging=diverging,
    )


def diverges(method: Scored) -> bool:
    """Return whether a method has negative scores, so that colours must diverge from zero."""
    return method.signed and any(number < 0 for row in method.scores for number in row)


def token_shades(found: Explanation, method: Scored, read: Input, diverging: bool | None = None) -> tuple[Shade, ...]:
    """Return the shaded tokens of one input. Patches and moments are drawn instead and are left out."""
    diverging = diverges(method) if diverging is None else diverging
    row = method.scores[found.inputs.index(read)]
    if not row:
        return ()
    drawn_as_sound = read.kind == "sound" and read.step is not None
    shown = 0 if drawn_as_sound else read.before
    ranks = {(token.input, token.place): rank for rank, token in enumerate(found.top(method.name, 10**9), 1)}
    shades = []
    for place, (word, text) in enumerate(zip(read.tokens, as_written(read.tokens[:shown]), strict=False)):
        number = row[place]
        share = number / method.reach if math.isfinite(number) else 0.0
        step = round(((1 + share) / 2 if diverging else max(share, 0.0)) * (STEPS - 1))
        answers = read is found.inputs[-1] and place == found.position
        continues = in_continuation(found, read, place)
        reading = (
            f"'{visible(word)}' (token {place}): {signed(number)}, {share:.0%} of the largest, "
            f"number {ranks[read.name, place]} of {len(ranks)}{', in the continuation' * continues}"
        )
        mark = " ".join(["underlined"] * answers + ["dotted"] * continues)
        shades.append(Shade(text, f"{'d' if diverging else 'q'}{step}", reading, mark))
    if shades and found.steps and read is found.inputs[-1]:
        shades.append(Shade(visible(found.steps[-1].word), "", PREDICTED, "dim"))
    return tuple(shades)


def _figures(found: Explanation) -> tuple[Figure, ...]:
    chart = "attnscope.commands.explain.chart"
    tokens = sum(len(read.tokens) for read in found.inputs)
    some = f" Only the {MOST_TOKENS} of {tokens} tokens that did most are shown." if tokens > MOST_TOKENS else ""
    methods = Figure(
        "tokens-by-methods",
        "Tokens by methods",
        drawn_by(f"{chart}:explanation_map", found),
        f"Each method is divided by its largest number. Units differ, so compare only the order of tokens.{some}",
        "How much every token did by each method.",
    )
    if (split := found.lengths) is None:
        return (methods,)
    sums = ", ".join(f"{exactly(k)} {signed(v)}" for k, v in enumerate(split.sums[:MOST_LENGTHS]))
    more = " and so on" if len(split.sums) > MOST_LENGTHS else ""
    total = f"All together: {numeral(split.total)}; the answer is {numeral(found.value)}."
    lengths = Figure(
        "tokens-by-length",
        "Path contribution by length",
        drawn_by(f"{chart}:length_map", found),
        f"Sums over all rows: {sums}{more}. {total} Shades follow the square root of the number.",
        "What every token sends to the answer, by how many heads it passes.",
    )
    return methods, lengths


def _word(found: Explanation, name: str, word: str) -> str:
    """Return a token of a text in quotes; patches and moments have names of their own."""
    return quoted(word, bare=any(read.name == name and read.kind != "text" for read in found.inputs))


def _index(found: Explanation, name: str, place: int) -> str:
    return f"{name} {place}" if len(found.inputs) > 1 else str(place)


def _often_table(found: Explanation) -> tuple[Table, ...]:
    """List tokens among the first three of two methods or more."""
    words = {(read.name, place): word for read in found.inputs for place, word in enumerate(read.tokens)}
    voters = len(voters_of(found))
    lines = tuple(
        (_word(found, name, words[name, place]), _index(found, name, place), f"{votes} of {voters} methods")
        for (name, place), votes in named_by(found).most_common(TOP)
        if votes > 1
    )
    caption = f"Tokens among the first {FEW} of several methods"
    return (Table(("word", "token", "named by"), lines, caption, align="lll", brief=0),) if lines else ()


def _agreement_table(found: Explanation) -> tuple[Table, ...]:
    """Tabulate rank correlations, if there are two methods or more."""
    known = found.agreement()

    def cell(one: Scored, other: Scored) -> str:
        if one is other:
            return "1"
        value = known.get((one.name, other.name), known.get((other.name, one.name), math.nan))
        return correlation_words(value) if math.isfinite(value) else "–"

    if len(found.voting) < 2:
        return ()
    lines = tuple((one.title, *(cell(one, other) for other in found.voting)) for one in found.voting)
    note = "1: the same order of tokens; 0: nothing in common; −1: the opposite order."
    heading = ("", *(method.title for method in found.voting))
    return (Table(heading, lines, "Rank correlation of methods", note, brief=0),)


def _top_tables(found: Explanation) -> tuple[Table, ...]:
    """List the tokens that did most by each method. A terminal shows three methods, and with --verbose all."""
    brief = (voters_of(found) or list(found.methods))[:FEW]
    tables = []
    for method in found.methods:
        lines = tuple(
            (_index(found, token.input, token.place), _word(found, token.input, token.word), signed(token.score))
            for token in found.top(method.name, TOP)
        )
        if more := found.unlisted(method.name, TOP):
            lines = (*lines, ("", f"and {more} more, equal", ""))
        shown = None if method in brief else 0
        tables.append(Table(("token", "word", "number"), lines, method.title, align="rlr", brief=shown))
    return tuple(tables)
