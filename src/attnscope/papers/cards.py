"""List the experiments without importing them, because they import torch.

`cards.json` holds the card of every experiment and the hash of its file; `tools/experiment_cards.py` (`make tables`)
writes it. An experiment whose file is new, or has changed since then, is imported to get its card.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope.core.card import digest, names
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.experiment import Bound, Claim, Experiment, ExperimentCard
from attnscope.core.registry import experiments

EXPERIMENTS = "attnscope.papers.experiments"
FILE = "cards.json"
_WORDS = ("title", "paper", "summary", "advice")


def cards() -> dict[str, ExperimentCard]:
    """Return every experiment's card, by name."""
    written = _written()
    return {name: _card(name, written.get(name)) for name in names(EXPERIMENTS)}


def card_named(paper: str, known: Mapping[str, ExperimentCard]) -> ExperimentCard:
    """Find a card by name, or by arXiv number if only one experiment has it."""
    by_number = [card for card in known.values() if card.paper == paper.lower().removeprefix("arxiv:")]
    if len(by_number) == 1:
        return by_number[0]
    if paper not in known:
        raise RefusalError(f"There is no experiment called '{paper}'.{nearest(paper, known)}")
    return known[paper]


def cards_json(experiments: Mapping[str, Experiment]) -> bytes:
    """Return the content of cards.json."""
    data = {
        name: {"sha256": digest(EXPERIMENTS, name), **_document(experiment.card)}
        for name, experiment in sorted(experiments.items())
    }
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _card(name: str, written: Mapping[str, Any] | None) -> ExperimentCard:
    if written is not None and written["sha256"] == digest(EXPERIMENTS, name):
        return _read(name, written)
    return experiments()[name].card


@cache
def _written() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("attnscope.papers").joinpath(FILE).read_text("utf-8"))
    return content


def _document(card: ExperimentCard) -> dict[str, Any]:
    def rules(claim: Claim) -> dict[str, Any]:
        bounds = {"holds": claim.holds, "fails": claim.fails, **({"given": claim.given} if claim.given else {})}
        return {name: [list(astuple(bound)) for bound in some] for name, some in bounds.items()}

    claims = [
        {name: getattr(claim, name) for name in ("name", "paper", "statement", "expected")} | rules(claim)
        for claim in card.claims
    ]
    words = {name: getattr(card, name) for name in _WORDS}
    return {**words, "takes": dict(card.takes), "seeds": dict(card.seeds), "claims": claims}


def _read(name: str, written: Mapping[str, Any]) -> ExperimentCard:
    claims = (
        Claim(
            *(claim[key] for key in ("name", "paper", "statement", "expected")),
            *(tuple(Bound(*bound) for bound in claim.get(key, ())) for key in ("holds", "fails", "given")),
        )
        for claim in written["claims"]
    )
    return ExperimentCard(name=name, claims=tuple(claims), **{key: written[key] for key in (*_WORDS, "takes", "seeds")})
