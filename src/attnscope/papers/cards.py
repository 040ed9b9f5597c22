"""What can be reproduced, without importing it: the experiments import torch, and a list of them should not.

`cards.json`, beside this file, holds the card of every experiment with the hash of the file that defines it; it is
written by `tools/experiment_cards.py` (`make tables`). A file that is new or has changed since is imported and asked
itself, so the list is right either way, and quick where nothing has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope.core.card import digest, names
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.experiment import Bound, Claim, Experiment, ExperimentCard
from attnscope.core.registry import experiments

ROOM = "attnscope.papers.experiments"


FILE = "cards.json"


def cards() -> dict[str, ExperimentCard]:
    """Every experiment's card, by name."""
    written = _written()
    return {name: _card(name, written.get(name)) for name in names(ROOM)}


def card_named(paper: str, known: Mapping[str, ExperimentCard]) -> ExperimentCard:
    """By name, or by the number of its paper where that is one experiment's alone."""
    by_number = [one for one in known.values() if one.paper == paper.lower().removeprefix("arxiv:")]
    if len(by_number) == 1:
        return by_number[0]
    if paper not in known:
        raise RefusalError(f"There is no experiment called '{paper}'.{nearest(paper, known)}")
    return known[paper]


def cards_json(experiments: Mapping[str, Experiment]) -> bytes:
    """The file beside this one."""
    data = {name: {"sha256": digest(ROOM, name), **_document(one.card)} for name, one in sorted(experiments.items())}
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _card(name: str, written: Mapping[str, Any] | None) -> ExperimentCard:
    if written is not None and written["sha256"] == digest(ROOM, name):
        return _read(name, written)

    return experiments()[name].card


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files("attnscope.papers").joinpath(FILE).read_text("utf-8"))
    return found


def _document(card: ExperimentCard) -> dict[str, Any]:
    return {
        "title": card.title,
        "paper": card.paper,
        "summary": card.summary,
        "advice": card.advice,
        "takes": dict(card.takes),
        "seeds": dict(card.seeds),
        "claims": [
            {
                "name": claim.name,
                "paper": claim.paper,
                "statement": claim.statement,
                "expected": claim.expected,
                "holds": [[one.quantity, one.relation, one.limit] for one in claim.holds],
                "fails": [[one.quantity, one.relation, one.limit] for one in claim.fails],
                **({"given": [[one.quantity, one.relation, one.limit] for one in claim.given]} if claim.given else {}),
            }
            for claim in card.claims
        ],
    }


def _read(name: str, written: Mapping[str, Any]) -> ExperimentCard:
    claims = (
        Claim(
            claim["name"],
            claim["paper"],
            claim["statement"],
            claim["expected"],
            tuple(Bound(*one) for one in claim["holds"]),
            tuple(Bound(*one) for one in claim["fails"]),
            tuple(Bound(*one) for one in claim.get("given", ())),
        )
        for claim in written["claims"]
    )
    words = {key: written[key] for key in ("title", "paper", "summary", "advice", "takes", "seeds")}
    return ExperimentCard(name=name, claims=tuple(claims), **words)
