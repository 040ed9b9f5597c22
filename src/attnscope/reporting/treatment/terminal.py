"""A treatment in a terminal: the verdict, every finding in all arms, and what it cost."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.core.numerals import numeral
from attnscope.core.visible import clean
from attnscope.records.treatment import Treatment
from attnscope.reporting.terminal import lines_under, opening
from attnscope.reporting.treatment.words import (
    cost_words,
    how_many,
    interval_words,
    settings_words,
    title_of,
    verdict,
    why_words,
)

MOST = 8  # findings on a screen


def show(found: Treatment, *, verbose: bool = False) -> RenderableType:
    """What a console prints; `verbose` adds every finding in words and the losses of all arms."""
    corpus = found.provenance.get("corpus", {})
    about = f"{found.model} ({found.class_name}) on {corpus.get('name', 'ready batches')}"
    where = settings_words(found)
    parts: list[RenderableType] = [
        *opening(verdict(found), about, *([where] if where else []), ""),
        Text(f"· {clean(why_words(found))}"),
        *(Text(f"· {clean(told)}") for told in cost_words(found)),
        *lines_under("What became of findings", *findings_table(found, None if verbose else MOST)),
        *(Text(clean(note), style="dim") for note in found.notes),
    ]
    return Group(*parts, *(_losses(found) if verbose else ()))


def findings_table(found: Treatment, most: int | None = None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(heading, lines): how many heads or places a finding concerns in every arm, and the verdict on it."""
    arms = list(found.arms)
    lines = []
    for one in found.outcomes[:most]:
        counts = [getattr(one, arm) for arm in arms]
        lines.append((title_of(one), *(how_many(f) for f in counts), one.judgement))
    return ("", *arms, "verdict"), lines


def _losses(found: Treatment) -> list[RenderableType]:
    lines = [(name, numeral(arm.loss, 4)) for name, arm in found.arms.items()]
    compared = [("treated less " + found.baseline, interval_words(found.loss))]
    if found.baseline == "control":
        compared.append(("control less before", interval_words(found.loss_between("before", "control"))))
    return [
        *lines_under("Held-out loss", ("arm", "nats per token"), lines),
        *lines_under("Differences, with 95% intervals", ("", "nats per token"), compared),
    ]
