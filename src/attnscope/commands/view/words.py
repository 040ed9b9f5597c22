"""The sentences and the screen of a view: where attention goes, what single heads do, and how exact maps are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.commands.view.record import SIGNED_STEPS, STEPS, HeadMap, Part, View
from attnscope.core.words import clean, count, heads, numeral, percent
from attnscope.reports.terminal import lines_under, opening, section
from attnscope.reports.words import Verdict, beginning_words

MOST = 0.5  # a head has a kind if it gives more than this share of its attention to that token
KINDS = {"first": "the first token", "previous": "the token before", "own": "the token itself"}
ROOM = 72  # letters in a line
LETTERS = {"first": "F", "previous": "P", "own": "S", "": "·"}
LEGEND = "F first token, P previous token, S the token itself: more than half of a head's attention; · none of these"
HEADING = ("block", "head", "first", "before", "itself", "entropy")


def verdict(record: View) -> Verdict:
    """Say how much attention goes to the first token: on average, and in the head at which the page opens."""
    part, opened = record.part(), record.opened
    where = "" if len(record.parts) == 1 else f" in the {title(part)}"
    size = f"{count(len(part.heads), 'head')} in {count(len(part.layers), 'block')}"
    tokens = count(len(record.tokens(part.queries)), "token")
    said = f"{size} on {tokens}: {percent(_first(part.heads))} of attention goes to the first token{where}"
    there = [head for head in part.heads if head.layer == opened.layer and opened.head in (None, head.head)]
    share = percent(_first(there))
    if len(there) == 1 and there[0].first == max(head.first for head in part.heads):
        return Verdict("note", f"{said}, most in head {opened.head} of block {opened.layer} ({share}).")
    who = "" if opened.head is None else f"head {opened.head} of "
    return Verdict("note", f"{said}, and {share} in {who}block {opened.layer}.")


def _first(several: Sequence[HeadMap]) -> float:
    return sum(head.first for head in several) / max(len(several), 1)


def sentences(record: View) -> tuple[str, ...]:
    parts = [line for part in record.parts for line in _part(part, several=len(record.parts) > 1)]
    return (verdict(record).sentence, *parts, exactness(record), record.checked)


def title(part: Part) -> str:
    """Return `self-attention` for `model`, and `cross-attention of the decoder` for `decoder cross`."""
    stack, _, site = part.name.partition(" ")
    kind = {"": "self-attention", "cross": "cross-attention"}.get(site, f"{site} attention")
    return kind if stack == "model" else f"{kind} of the {stack}"


def exactness(record: View) -> str:
    """Say how maps are stored, and their largest error."""
    steps = SIGNED_STEPS if any(head.signed for head in record.heads) else STEPS
    return (
        f"Weights are stored in 8 bits, in steps of 1/{steps} of the largest weight of their row; the largest error "
        f"measured here is {numeral(record.error, 3)}."
    )


def does(head: HeadMap) -> str:
    """Return which of `KINDS` gets most of a head's attention, or ""."""
    return next((name for name in KINDS if (getattr(head, name) or 0.0) > MOST), "")


def _part(part: Part, several: bool) -> list[str]:
    where = f"In the {title(part)}, " if several else ""
    lines = []
    for name, words in KINDS.items():
        doing = sorted((head for head in part.heads if does(head) == name), key=lambda h: -(getattr(h, name) or 0.0))
        if doing:
            share = percent(getattr(doing[0], name))
            them = heads([(head.layer, head.head) for head in doing])
            gives = "gives most of its" if len(doing) == 1 else "give most of their"
            line = f"{where}{len(doing)} of {count(len(part.heads), 'head')} {gives} attention to {words}"
            lines.append(f"{line} ({'' if len(doing) == 1 else 'up to '}{share}): {them}.")
    if not lines:
        lines.append(f"{where}{'no' if several else 'No'} head gives most of its attention to one place.")
    if part.causal:
        reach = "" if part.window is None else f", at most {count(part.window, 'token')} back"
        lines.append(
            f"{where}{'a' if several else 'A'} token only looks back{reach}: maps are empty above the diagonal."
        )
    return lines


def show(record: View, *, verbose: bool = False) -> RenderableType:
    """Return the screen, with a letter for every head; with `verbose`, also the numbers of every head."""
    about = ", ".join((f"{record.model} ({record.class_name}, {record.dtype})", *beginning_words(record.provenance)))
    parts: list[RenderableType] = [
        *opening(verdict(record), about),
        Text(""),
        *(Text(clean(sentence)) for sentence in sentences(record)[1:]),
        *(Text(clean(note), style="dim") for note in record.notes),
    ]
    for part in record.parts:
        parts.append(section(f"{title(part).capitalize()}: a line for each head, a letter for each block"))
        letters = {(one.layer, one.head): LETTERS[does(one)] for one in part.heads}
        between = " " if 2 * len(part.layers) <= ROOM else ""
        for number in sorted({one.head for one in part.heads}):
            line = between.join(letters.get((layer, number), " ") for layer in part.layers)
            parts.append(Text.assemble((f"{number:>4}  ", "dim"), line))
        if verbose:
            parts += lines_under("Numbers", HEADING, [_numbers(head) for head in part.heads])
    return Group(*parts, Text(LEGEND, style="dim"))


def _numbers(head: HeadMap) -> tuple[str, ...]:
    shares = ("–" if share is None else percent(share) for share in (head.first, head.previous, head.own))
    return (str(head.layer), str(head.head), *shares, "–" if head.entropy is None else numeral(head.entropy, 3))
