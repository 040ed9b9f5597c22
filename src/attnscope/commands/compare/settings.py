"""What surveys were made of and with, and a sentence for everything that differs and makes numbers hard to compare.

Other weights are the point of a comparison, and are not told here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.commands.compare.record import Comparison
from attnscope.commands.scan.survey.survey import Survey

_MOST_NAMES = 6


def setting_notes(found: Comparison) -> tuple[str, ...]:
    """Why numbers of these surveys cannot be held against each other one to one; nothing where they can."""
    many = found.surveys
    said = [
        _builds(many),
        _texts(many),
        _told(
            [_corpus(one).get("window") for one in many],
            "Windows differ",
            "attention spreads wider over longer ones",
            "tokens",
        ),
        _told(
            [_begun(one) for one in many],
            "Only some of them begin sequences with BOS",
            "sinks and massive activations move with it",
        ),
        _told([_corpus(one).get("sequences") for one in many], "Other numbers of sequences were read", "", "sequences"),
        _measures(found),
        _definitions(many),
        _told([one.provenance.get("dtype") for one in many], "The precision differs", "small numbers may differ by it"),
        *(_versions(many, name) for name in ("attnscope", "torch", "transformers", "numpy")),
    ]
    return tuple(sentence for sentence in said if sentence)


def _builds(surveys: Sequence[Survey]) -> str | None:
    builds = [_build(one.provenance) for one in surveys]
    if not all(builds) or len(set(builds)) == 1:
        return None
    return (
        f"The models are built differently ({_listed(builds)}), so blocks and heads are matched by number alone and"
        " what only one model has is left out."
    )


def _build(provenance: dict[str, Any]) -> str:
    """`LlamaForCausalLM, decoder of 30 blocks × 9 heads`."""
    model = provenance.get("model")
    model = model if isinstance(model, dict) else {}
    stacks = [s for s in model.get("stacks") or [] if isinstance(s, dict) and s.get("layers")]
    sizes = [f"{s.get('name')} of {s.get('layers')} blocks × {s.get('heads')} heads" for s in stacks]
    return ", ".join(words for words in (str(model.get("class") or ""), *sizes) if words)


def _texts(surveys: Sequence[Survey]) -> str | None:
    """By the hash where there is one: a file of the same name may hold another text."""
    corpora = [_corpus(one) for one in surveys]
    if any(not corpus for corpus in corpora) or len({str(c.get("hash") or c.get("name")) for c in corpora}) == 1:
        return None
    names = [str(corpus.get("name") or "unnamed") for corpus in corpora]
    told = f" ({_listed(names)})" if len(set(names)) > 1 else ", though they are called the same"
    return f"The texts differ{told}: attention depends on what is read, so only large changes speak of the models."


def _told(values: Sequence[Any], what: str, why: str, noun: str = "") -> str | None:
    known = [f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v) for v in values]
    if any(value in (None, "") for value in values) or len(set(known)) == 1:
        return None
    reason = f": {why}" if why else ""
    return f"{what} ({_listed(known)}{f' {noun}' if noun else ''}){reason}."


def _measures(found: Comparison) -> str | None:
    missing = sorted({*found.only_before, *found.only_after})
    if not missing:
        return None
    titles = {name: card.title for one in found.surveys for name, card in one.cards.items()}
    told = [titles.get(name, name) for name in missing]
    more = f" and {len(told) - _MOST_NAMES} more" if len(told) > _MOST_NAMES else ""
    return f"Not measured in every survey, and so left out: {', '.join(told[:_MOST_NAMES])}{more}."


def _definitions(surveys: Sequence[Survey]) -> str | None:
    """Two versions may measure different things under one name."""
    cards = surveys[0].cards
    other = sorted(
        {
            name
            for one in surveys[1:]
            for name, card in one.cards.items()
            if name in cards and _meaning(card, cards[name])
        }
    )
    if not other:
        return None
    titles = ", ".join(cards[name].title for name in other[:_MOST_NAMES])
    return f"Defined differently in these surveys: {titles}. Scan again with one version of attnscope."


def _meaning(one: Any, other: Any) -> bool:
    return (one.summary, one.unit, one.parts) != (other.summary, other.unit, other.parts)


def _versions(surveys: Sequence[Survey], name: str) -> str | None:
    values = []
    for one in surveys:
        versions = one.provenance.get("versions")
        own = versions if isinstance(versions, dict) else {}
        values.append(one.provenance.get("attnscope") if name == "attnscope" else own.get(name))
    return _told(values, f"Versions of {name} differ", "")


def _begun(survey: Survey) -> str | None:
    found = survey.provenance.get("bos")
    begins = found.get("begins") if isinstance(found, dict) else None
    return ("BOS first" if begins else "no BOS") if isinstance(begins, bool) else None


def _corpus(survey: Survey) -> dict[str, Any]:
    corpus = survey.provenance.get("corpus")
    return corpus if isinstance(corpus, dict) else {}


def _listed(values: Sequence[str]) -> str:
    return "; ".join(values[:_MOST_NAMES]) + ("; ..." if len(values) > _MOST_NAMES else "")
