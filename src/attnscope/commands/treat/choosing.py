"""Which remedy is tried, and why: the one that was asked for, or what the table of remedies says to the findings."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.commands.treat.record import Chosen
from attnscope.core.errors import RefusalError
from attnscope.core.finding import AUTO, BOS, PRUNE, TABLE, Finding, answered_by, candidates
from attnscope.core.variant import variant_cards

WITHOUT_VARIANT = {
    PRUNE: (
        "Heads taken out",
        "Heads that are worth least write nothing any more.",
        "arXiv:1905.10650",
    ),
    BOS: (
        "BOS in front",
        "Every sequence begins with the BOS token, as the model was trained.",
        "arXiv:2309.17453",
    ),
}


def needs_training(name: str) -> bool:
    return name not in WITHOUT_VARIANT and variant_cards()[name].trains


def chosen_for(asked: str, found: Sequence[Finding], training: bool = True) -> Chosen:
    """The remedy that was asked for by name, or with `auto` the first in the table of the most severe finding that
    leaves the model as it is at its start: one that changes it at once has to be asked for. Without `training`, `auto`
    takes remedies that need none."""
    if asked != AUTO:
        return _described(asked, _why(asked, found), asked=True)
    offered = [one for one in candidates(found) if training or not needs_training(one[1])]
    if not offered:
        answered = ", ".join(row.finding for row in TABLE)
        raise RefusalError(
            f"Nothing was found that a remedy {'' if training else 'without training '}answers (one of {answered}): "
            "name one with --remedy to try it all the same."
        )
    row, name = next(((row, name) for row, name in offered if _gentle(name)), offered[0])
    others = tuple(dict.fromkeys(other for one, other in offered if other != name))
    return _described(name, f"{_sentence_of(row.finding, found)} {row.why}", asked=False, alternatives=others)


def _gentle(name: str) -> bool:
    return name in WITHOUT_VARIANT or variant_cards()[name].keeps is not None


def _why(name: str, found: Sequence[Finding]) -> str:
    row = next((row for row in TABLE if name in row.remedies and any(f.kind == row.finding for f in found)), None)
    return "It was asked for." if row is None else f"{_sentence_of(row.finding, found)} {row.why}"


def _sentence_of(kind: str, found: Sequence[Finding]) -> str:
    return next(one.sentence for one in found if one.kind == kind)


def _described(name: str, why: str, *, asked: bool, alternatives: tuple[str, ...] = ()) -> Chosen:
    if name in WITHOUT_VARIANT:
        title, summary, citation = WITHOUT_VARIANT[name]
        keeps = False
    else:
        card = variant_cards()[name]
        title, summary, citation, keeps = card.title, card.summary, card.citation, card.keeps is not None
    return Chosen(
        name=name,
        title=title,
        summary=summary,
        citation=citation,
        why=why,
        asked=asked,
        answers=answered_by(name),
        alternatives=alternatives,
        keeps=keeps,
    )
