"""How places, models and sources are put into words, in the page and in the terminal."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from attnscope.core.card import Card
from attnscope.core.finding import Finding
from attnscope.core.words import count, layers
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.survey import Survey

_ARXIV = re.compile(r"(?:arXiv:\s*)?(\d{4}\.\d{4,5})(?:v\d+)?", re.IGNORECASE)


class Words(NamedTuple):
    """A stretch of text, and where it leads, if anywhere."""

    text: str
    address: str | None = None


def citation(text: str) -> tuple[Words, ...]:
    """A source with its arXiv numbers as links. Only arXiv addresses are made, and only from digits."""
    words: list[Words] = []
    end = 0
    for match in _ARXIV.finditer(text):
        words += [Words(text[end : match.start()]), Words(match[0], f"https://arxiv.org/abs/{match[1]}")]
        end = match.end()
    return tuple(w for w in (*words, Words(text[end:])) if w.text)


def sentences(survey: Survey) -> tuple[str, ...]:
    """What was found, worst first, with the usual thresholds."""
    return tuple(finding.sentence for finding in diagnose(survey))


def place(finding: Finding) -> str:
    """`decoder, layers 12-29`."""
    if not finding.layers:
        return finding.stack
    return f"{finding.stack}, {layers(finding.layers)}"


def site_title(stack: str, site: str) -> str:
    if site == "uneven":
        return f"{stack}, self-attention with unequally many queries and keys"
    return stack if site in ("stream", "middle") else f"{stack}, {site}-attention"


def note_words(survey: Survey) -> tuple[str, ...]:
    """What a reader must know before the numbers: parts of the model that are not in the survey."""
    notes = survey.provenance.get("notes")
    return tuple(str(note) for note in notes) if isinstance(notes, list) else ()


def model_name(survey: Survey) -> str:
    return str(_section(survey, "model").get("name") or "unnamed model")


def corpus_words(survey: Survey) -> tuple[str, ...]:
    """What was read: `wikitext`, `64 sequences`, `16,384 tokens`; of a folder also how many files."""
    corpus = _section(survey, "corpus")
    words = [str(corpus["name"])] if corpus.get("name") else []
    if isinstance(corpus.get("files_read"), int):
        words.append(f"{count(corpus['files_read'], 'file')} read and {corpus.get('files_skipped', 0):,} skipped")
    words += [f"{corpus[k]:,} {k}" for k in ("sequences", "tokens") if isinstance(corpus.get(k), int)]
    return tuple(words)


def missing_words(survey: Survey) -> tuple[str, ...]:
    """A sentence for every reason why measures that were asked for are not here, in the order of their cards."""
    reasons = _section(survey, "not_measured")
    measured = {key.measure for key in survey.cells}
    titles: dict[str, list[str]] = {}
    for name in sorted(reasons, key=lambda n: (n not in survey.cards, n)):
        if name not in measured:
            why = reasons[name] if isinstance(reasons[name], list) else [reasons[name]]
            reason = " ".join("; ".join(str(w).rstrip(".") for w in why).split())
            titles.setdefault(reason, []).append(survey.cards[name].title if name in survey.cards else name)
    return tuple(
        f"{', '.join(some[:-1])}{' and ' if some[1:] else ''}{some[-1]}"
        f" {'were' if some[1:] else 'was'} not measured{': ' if reason else ''}{reason}."
        for reason, some in titles.items()
    )


def names(first: Survey, second: Survey) -> tuple[str, str]:
    """Two names that differ: of the models, else of the corpora, else `first` and `second`."""
    whole = model_name(first), model_name(second)
    pair = whole[0].rstrip("/").rsplit("/", 1)[-1], whole[1].rstrip("/").rsplit("/", 1)[-1]
    if whole[0] != whole[1]:
        return pair if pair[0] != pair[1] else whole
    corpora = (corpus_words(first) or ("",))[0], (corpus_words(second) or ("",))[0]
    told = corpora if corpora[0] != corpora[1] else ("first", "second")
    return f"{pair[0]} ({told[0]})", f"{pair[1]} ({told[1]})"


def card_range(card: Card) -> str:
    from attnscope.core.numerals import numeral

    low, high = (numeral(v) if abs(v) != float("inf") else None for v in (card.low, card.high))
    if low is None or high is None:
        return "any number" if low is None and high is None else f"from {low}" if high is None else f"up to {high}"
    return f"{low} to {high}"


def _section(survey: Survey, name: str) -> dict[str, Any]:
    found = survey.provenance.get(name)
    return found if isinstance(found, dict) else {}
