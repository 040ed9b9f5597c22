"""Choose the remedy: the one named by the caller, or the first in the table of remedies that answers a finding."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.commands.treat.record import Chosen
from attnscope.core.errors import RefusalError
from attnscope.core.finding import AUTO, BOS, PRUNE, TABLE, Finding, answered_by, candidates
from attnscope.core.variant import variant_cards

WITHOUT_VARIANT = {
    PRUNE: ("Heads taken out", "The least valuable heads write nothing any more.", "arXiv:1905.10650"),
    BOS: ("BOS in front", "Every sequence begins with the BOS token, as in training.", "arXiv:2309.17453"),
}


def needs_training(name: str) -> bool:
    return name not in WITHOUT_VARIANT and variant_cards()[name].trains


def chosen_for(asked: str, found: Sequence[Finding], training: bool = True) -> Chosen:
    """Return the remedy called `asked`; for `auto`, the first for the most severe finding that starts from the same
    function. Remedies that change the model at once must be named. Without `training`, `auto` skips those that need it.
    """
    if asked != AUTO:
        return _described(asked, _why(asked, found), asked=True)
    offered = [(row, name) for row, name in candidates(found) if training or not needs_training(name)]
    if not offered:
        answered = ", ".join(row.finding for row in TABLE)
        raise RefusalError(
            f"No finding has a remedy{'' if training else ' without training'} (findings with one: {answered}): name "
            "one with `remedy=` to try it anyway."
        )
    keeping = (pair for pair in offered if pair[1] in WITHOUT_VARIANT or variant_cards()[pair[1]].keeps is not None)
    row, name = next(keeping, offered[0])
    others = tuple(dict.fromkeys(other for _, other in offered if other != name))
    return _described(name, f"{_sentence_of(row.finding, found)} {row.why}", asked=False, alternatives=others)


def _why(name: str, found: Sequence[Finding]) -> str:
    row = next((row for row in TABLE if name in row.remedies and any(f.kind == row.finding for f in found)), None)
    return "It was asked for." if row is None else f"{_sentence_of(row.finding, found)} {row.why}"


def _sentence_of(kind: str, found: Sequence[Finding]) -> str:
    return next(finding.sentence for finding in found if finding.kind == kind)


def _described(name: str, why: str, *, asked: bool, alternatives: tuple[str, ...] = ()) -> Chosen:
    if name in WITHOUT_VARIANT:
        title, summary, citation = WITHOUT_VARIANT[name]
        keeps = False
    else:
        card = variant_cards()[name]
        title, summary, citation, keeps = card.title, card.summary, card.citation, card.keeps is not None
    return Chosen(name, title, summary, citation, why, asked, answered_by(name), alternatives, keeps)
