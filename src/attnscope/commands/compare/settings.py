"""Sentences on settings that differ between surveys and make their numbers hard to compare. Weights may differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.commands.compare.record import Comparison
from attnscope.commands.scan.survey.survey import Survey

_MOST_NAMES = 6


def setting_notes(found: Comparison) -> tuple[str, ...]:
    """Return a sentence per setting that differs."""
    many = found.surveys
    windows, sequences = ([_corpus(survey).get(name) for survey in many] for name in ("window", "sequences"))
    notes = [
        _builds(many),
        _texts(many),
        _note(windows, "Windows differ", "attention spreads wider over longer ones", "tokens"),
        _note(
            [_bos(s) for s in many], "Not all sequences begin with BOS", "sinks and massive activations depend on it"
        ),
        _note(sequences, "Numbers of sequences differ", "", "sequences"),
        _measures(found),
        _definitions(many),
        _note(
            [s.provenance.get("dtype") for s in many], "The precision differs", "small numbers may differ because of it"
        ),
        *(_versions(many, name) for name in ("attnscope", "torch", "transformers", "numpy")),
    ]
    return tuple(note for note in notes if note)


def _builds(surveys: Sequence[Survey]) -> str | None:
    builds = [_build(survey.provenance) for survey in surveys]
    if not all(builds) or len(set(builds)) == 1:
        return None
    return (
        f"The models are built differently ({_listed(builds)}): blocks and heads are matched by number, and those that"
        " only one model has are skipped."
    )


def _build(provenance: dict[str, Any]) -> str:
    """`LlamaForCausalLM, decoder of 30 blocks × 9 heads`."""
    model = provenance.get("model")
    model = model if isinstance(model, dict) else {}
    stacks = [s for s in model.get("stacks") or [] if isinstance(s, dict) and s.get("layers")]
    sizes = [f"{s.get('name')} of {s.get('layers')} blocks × {s.get('heads')} heads" for s in stacks]
    return ", ".join(words for words in (str(model.get("class") or ""), *sizes) if words)


def _texts(surveys: Sequence[Survey]) -> str | None:
    """Compare hashes, if known: files of one name may hold different texts."""
    corpora = [_corpus(survey) for survey in surveys]
    if any(not corpus for corpus in corpora) or len({str(c.get("hash") or c.get("name")) for c in corpora}) == 1:
        return None
    names = [str(corpus.get("name") or "unnamed") for corpus in corpora]
    which = f" ({_listed(names)})" if len(set(names)) > 1 else ", though their names are the same"
    return f"The texts differ{which}: attention depends on the text, so only large changes are due to the models."


def _note(values: Sequence[Any], what: str, why: str, noun: str = "") -> str | None:
    known = [f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v) for v in values]
    if any(value in (None, "") for value in values) or len(set(known)) == 1:
        return None
    reason = f": {why}" if why else ""
    return f"{what} ({_listed(known)}{f' {noun}' if noun else ''}){reason}."


def _measures(found: Comparison) -> str | None:
    missing = sorted({*found.only_before, *found.only_after})
    if not missing:
        return None
    titles = {name: card.title for survey in found.surveys for name, card in survey.cards.items()}
    named = [titles.get(name, name) for name in missing]
    more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    return f"Skipped, because not every survey measured them: {', '.join(named[:_MOST_NAMES])}{more}."


def _definitions(surveys: Sequence[Survey]) -> str | None:
    """Compare the cards of measures: two versions may measure different things under one name."""
    meanings = [{name: (c.summary, c.unit, c.parts) for name, c in survey.cards.items()} for survey in surveys]
    first = meanings[0]
    names = sorted({name for other in meanings[1:] for name in other if name in first and other[name] != first[name]})
    if not names:
        return None
    titles = ", ".join(surveys[0].cards[name].title for name in names[:_MOST_NAMES])
    return f"Defined differently in these surveys: {titles}. Scan again with one version of attnscope."


def _versions(surveys: Sequence[Survey], name: str) -> str | None:
    values = []
    for survey in surveys:
        versions = survey.provenance.get("versions")
        own = versions if isinstance(versions, dict) else {}
        values.append(survey.provenance.get("attnscope") if name == "attnscope" else own.get(name))
    return _note(values, f"Versions of {name} differ", "")


def _bos(survey: Survey) -> str | None:
    found = survey.provenance.get("bos")
    begins = found.get("begins") if isinstance(found, dict) else None
    return ("BOS first" if begins else "no BOS") if isinstance(begins, bool) else None


def _corpus(survey: Survey) -> dict[str, Any]:
    corpus = survey.provenance.get("corpus")
    return corpus if isinstance(corpus, dict) else {}


def _listed(values: Sequence[str]) -> str:
    return "; ".join(values[:_MOST_NAMES]) + ("; ..." if len(values) > _MOST_NAMES else "")
