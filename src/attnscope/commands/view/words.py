"""What a view says, in sentences: where attention goes on this text, which heads do one thing, how exact maps are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.commands.view.record import SIGNED_STEPS, STEPS, HeadMap, Part, View
from attnscope.core.words import clean, count, heads, numeral, percent
from attnscope.reports.terminal import lines_under, opening, section
from attnscope.reports.words import Verdict, beginning_words

MOST = 0.5  # of a head's attention: more than that is what the head does
KINDS = {
    "first": "the first token",
    "previous": "the token before",
    "own": "the token itself",
}


def verdict(found: View) -> Verdict:
    """How much there is to see, and where most of it goes."""
    part = found.part()
    where = "" if len(found.parts) == 1 else f" in the {title(part)}"
    tokens = count(len(found.tokens(part.queries)), "token")
    many = f"{count(len(part.heads), 'head')} in {count(len(part.layers), 'layer')}"
    return Verdict(
        "note",
        f"{many} on {tokens}: {percent(_mean(part.heads, 'first'))} of attention goes to the first token{where}.",
    )


def sentences(found: View) -> tuple[str, ...]:
    said = [verdict(found).sentence]
    for part in found.parts:
        said += _part(part, several=len(found.parts) > 1)
    return (*said, exactness(found), found.checked)


def title(part: Part) -> str:
    """`model` -> self-attention; `decoder cross` -> cross-attention of the decoder."""
    stack, _, site = part.name.partition(" ")
    kind = {"": "self-attention", "cross": "cross-attention"}.get(site, f"{site} attention")
    return kind if stack == "model" else f"{kind} of the {stack}"


def exactness(found: View) -> str:
    """How maps are kept, and what that costs."""
    signed = any(one.signed for one in found.heads)
    steps = f"1/{SIGNED_STEPS if signed else STEPS}"
    return (
        f"Weights are kept in 8 bits, in every row in steps of {steps} of its largest weight; the largest error of any "
        f"weight here is {numeral(found.error, 3)}, measured against the map that was computed."
    )


def does(one: HeadMap) -> str:
    """What a head gives most of its attention to; nothing where it spreads it."""
    return next((name for name in KINDS if (getattr(one, name) or 0.0) > MOST), "")


def _part(part: Part, several: bool) -> list[str]:
    where = f"In the {title(part)}, " if several else ""
    said = []
    for name, words in KINDS.items():
        doing = sorted((one for one in part.heads if does(one) == name), key=lambda one: -(getattr(one, name) or 0.0))
        if doing:
            share = percent(getattr(doing[0], name))
            them = heads([(one.layer, one.head) for one in doing])
            gives = "gives most of its" if len(doing) == 1 else "give most of their"
            line = f"{where}{len(doing)} of {count(len(part.heads), 'head')} {gives} attention to {words}"
            said.append(f"{line} ({'' if len(doing) == 1 else 'up to '}{share}): {them}.")
    if not said:
        said.append(f"{where}{'no' if several else 'No'} head gives most of its attention to one place.")
    if part.causal:
        reach = "" if part.window is None else f", {count(part.window, 'token')} back at most"
        said.append(
            f"{where}{'a' if several else 'A'} token looks back only{reach}: above the diagonal maps are empty."
        )
    return said


def _mean(of: Sequence[HeadMap], name: str) -> float:
    values = [value for one in of if (value := getattr(one, name)) is not None]
    return sum(values) / len(values) if values else 0.0


# A view in a terminal: the verdict, what heads do, and a letter for every head.

ROOM = 72  # letters in a line
LETTERS = {"first": "F", "previous": "P", "own": "S", "": "·"}
LEGEND = "F the first token, P the one before, S itself: more than half of a head's attention; · spread"


def show(found: View, *, verbose: bool = False) -> RenderableType:
    """What a console prints; with `verbose`, numbers of every head."""
    about = ", ".join((f"{found.model} ({found.class_name}, {found.dtype})", *beginning_words(found.provenance)))
    parts: list[RenderableType] = [
        *opening(verdict(found), about),
        Text(""),
        *(Text(clean(sentence)) for sentence in sentences(found)[1:]),
        *(Text(clean(note), style="dim") for note in found.notes),
    ]
    for part in found.parts:
        parts += [
            section(f"{title(part).capitalize()}: a line for each layer, a letter for each head"),
            *_letters(part),
        ]
        if verbose:
            parts += lines_under("Numbers", ("layer", "head", "first", "before", "itself", "entropy"), _lines(part))
    return Group(*parts, Text(LEGEND, style="dim"))


def _letters(part: Part) -> list[RenderableType]:
    rows = []
    for layer in part.layers:
        letters = [LETTERS[does(one)] for one in part.heads if one.layer == layer]
        between = " " if 2 * len(letters) <= ROOM else ""
        rows.append(Text.assemble((f"{layer:>4}  ", "dim"), between.join(letters)))
    return list(rows)


def _lines(part: Part) -> list[tuple[str, ...]]:
    return [(str(one.layer), str(one.head), *_numbers(one)) for one in part.heads]


def _numbers(one: HeadMap) -> tuple[str, ...]:
    shares = (one.first, one.previous, one.own)
    entropy = "–" if one.entropy is None else numeral(one.entropy, 3)
    return (*("–" if share is None else percent(share) for share in shares), entropy)
