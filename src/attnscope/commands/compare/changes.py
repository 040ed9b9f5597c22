"""Describe single changes of a comparison, and give its surveys distinct names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.commands.compare.differences import Change
from attnscope.commands.compare.record import Comparison
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.words import corpus_words, model_name
from attnscope.core.card import Card
from attnscope.core.words import count, numeral

# Sentences on settings that differ between surveys and make their numbers hard to compare. Different weights are fine.

_MOST_NAMES = 6


def setting_notes(comparison: Comparison) -> tuple[str, ...]:
    """Return a sentence per setting that differs."""
    many = comparison.surveys
    windows, sequences = ([_corpus(survey).get(name) for survey in many] for name in ("window", "sequences"))
    notes = [
        _builds(many),
        _texts(many),
        _note(windows, "Windows differ", "attention spreads wider over longer ones", "tokens"),
        _note(
            [_bos(s) for s in many], "Not all sequences begin with BOS", "sinks and massive activations depend on it"
        ),
        _note(sequences, "Numbers of sequences differ", "", "sequences"),
        _measures(comparison),
        _definitions(many),
        _note(
            [s.provenance.get("dtype") for s in many],
            "The precision differs",
            "small numbers may differ for that reason",
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
    """Return `LlamaForCausalLM, decoder of 30 blocks × 9 heads`."""
    model = provenance.get("model")
    model = model if isinstance(model, dict) else {}
    stacks = [s for s in model.get("stacks") or [] if isinstance(s, dict) and s.get("layers")]
    sizes = [f"{s.get('name')} of {s.get('layers')} blocks × {s.get('heads')} heads" for s in stacks]
    return ", ".join(words for words in (str(model.get("class") or ""), *sizes) if words)


def _texts(surveys: Sequence[Survey]) -> str | None:
    """Return a note if the texts differ. Hashes decide if known, because files of one name may hold different texts."""
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


def _measures(comparison: Comparison) -> str | None:
    missing = sorted({*comparison.only_before, *comparison.only_after})
    if not missing:
        return None
    titles = {name: card.title for survey in comparison.surveys for name, card in survey.cards.items()}
    named = [titles.get(name, name) for name in missing]
    more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    return f"Skipped, because not every survey measured them: {', '.join(named[:_MOST_NAMES])}{more}."


def _definitions(surveys: Sequence[Survey]) -> str | None:
    """Return a note if the cards of a measure differ: two versions may define one name differently."""
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
    comparison = survey.provenance.get("bos")
    begins = comparison.get("begins") if isinstance(comparison, dict) else None
    return ("BOS first" if begins else "no BOS") if isinstance(begins, bool) else None


def _corpus(survey: Survey) -> dict[str, Any]:
    corpus = survey.provenance.get("corpus")
    return corpus if isinstance(corpus, dict) else {}


def _listed(values: Sequence[str]) -> str:
    return "; ".join(values[:_MOST_NAMES]) + ("; ..." if len(values) > _MOST_NAMES else "")


SMALLEST_EFFECT = 2.0  # smaller effects are not listed
LABEL = 28  # characters
MOST_OF_A_BLOCK = 3  # most changes of one block in a list, each of another measure
_BARE = ("", "1", "share", "factor", "ratio", "cosine", "eigenvalue", "singular value")  # units that are not printed


def largest_changes(comparison: Comparison, most: int) -> tuple[Change, ...]:
    """Return the largest changes, grouped by block: the block where models part first, then by the largest effect.

    At most three of each block are listed, each of another measure.
    """
    blocks: dict[tuple[int, str, int], dict[str, Change]] = {}
    for change in changes_worth_listing(comparison):
        block = blocks.setdefault((change.survey, change.stack, change.block), {})
        if len(block) < MOST_OF_A_BLOCK:
            block.setdefault(change.measure, change)
    parted = {(found.survey, found.stack, found.layer) for found in comparison.partings if found.layer is not None}
    order = sorted(blocks, key=lambda block: block not in parted)  # stable: the others stay in order of effect
    return tuple(change for block in order for change in blocks[block].values())[:most]


def changes_worth_listing(comparison: Comparison) -> tuple[Change, ...]:
    return tuple(change for change in comparison.changes if abs(change.effect) >= SMALLEST_EFFECT)


def change_sentence(comparison: Comparison, change: Change) -> str:
    """Return `Attention entropy in block 3, head 2: 1.2 → 3.4 nats`."""
    where = f" in {names(comparison)[change.survey]}" if len(comparison.surveys) > 2 else ""
    return f"{change_title(comparison, change)}{where}: {change_values(comparison, change)}"


def change_values(comparison: Comparison, change: Change) -> str:
    """Return `1.2 → 3.4 nats`."""
    card = card_of(comparison.surveys, change.measure)
    unit = "" if card is None or card.unit in _BARE else card.unit
    return f"{' → '.join(values(change))} {unit}".rstrip()


def values(change: Change) -> tuple[str, str]:
    """Return both numbers with the fewest significant digits that distinguish them, at least three."""
    pairs = [(numeral(change.before, figures), numeral(change.after, figures)) for figures in (3, 4, 6, 9)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])


def change_title(comparison: Comparison, change: Change) -> str:
    """Return measure and place: `Effective rank entering block 3`."""
    card = card_of(comparison.surveys, change.measure)
    title = card.title if card is not None else change.measure.replace("_", " ")
    part = "" if change.part == "value" else f" ({change.part.replace('_', ' ')})"
    return f"{title}{part} {change_place(comparison, change)}"


def change_place(comparison: Comparison, change: Change) -> str:
    """Return `in block 2, head 1`, `entering block 2`, `after the last block`."""
    several = len({stack for survey in comparison.surveys for stack in survey.stacks}) > 1
    tail = f" of the {change.stack}" if several else ""
    card = card_of(comparison.surveys, change.measure)
    if change.site == "stream" and card is not None and card.of_block:
        return f"in block {change.layer - 1}{tail}"
    if change.site == "stream":
        last = all(
            depth(survey, change.stack) == change.layer
            for survey in (comparison.first, comparison.surveys[change.survey])
        )
        return f"after the last block{tail}" if last else f"entering block {change.layer}{tail}"
    if change.site == "middle":
        return f"inside block {change.layer}{tail}, after attention"
    head = "" if change.head is None else f", head {change.head}"
    cross = "the cross-attention of " if change.site == "cross" else ""
    return f"in {cross}block {change.layer}{tail}{head}"


def depth(survey: Survey, stack: str) -> int | None:
    """Return the number of blocks of a stack, or None if it is unknown."""
    layers = [key.layer for key in survey.cells if key.stack == stack and key.site in ("self", "cross", "middle")]
    return max(layers) + 1 if layers else None


def change_words(comparison: Comparison) -> str:
    """Return the title of the list of changes, or the reason why it is empty."""
    changed = len(comparison.changes)
    numbers = count(changed + comparison.unchanged, "number")
    if not changed:
        return f"Nothing changed: {numbers} compared, no difference"
    if not changes_worth_listing(comparison):
        return (
            f"Nothing changed noticeably: {changed:,} of {numbers} differ, all with an effect below {SMALLEST_EFFECT:g}"
        )
    return "Changes by block"


def card_of(surveys: Sequence[Survey], measure: str) -> Card | None:
    return next((survey.cards[measure] for survey in surveys if measure in survey.cards), None)


def names(comparison: Comparison) -> tuple[str, ...]:
    """Return distinct names: those of the models, with the corpus if needed, else with `first`, `second` or numbers."""
    whole = [model_name(survey) for survey in comparison.surveys]
    short = [name.rstrip("/").rsplit("/", 1)[-1] for name in whole]
    corpora = [(corpus_words(survey) or ("",))[0] for survey in comparison.surveys]
    with_corpus = [f"{name} ({corpus})" for name, corpus in zip(short, corpora, strict=True)]
    for candidates in (short, whole, with_corpus):
        if len(set(candidates)) == len(candidates):
            return tuple(candidates)
    numbers = ("first", "second") if len(short) == 2 else tuple(str(n + 1) for n in range(len(short)))
    return tuple(f"{name} ({n})" for name, n in zip(short, numbers, strict=True))


def labels(comparison: Comparison) -> tuple[str, ...]:
    """Return names for legends and columns. Long names are shortened in the middle if they stay distinct."""
    whole = names(comparison)
    short = tuple(name if len(name) <= LABEL else f"{name[: LABEL // 2 - 1]}…{name[-LABEL // 2 :]}" for name in whole)
    return short if len(set(short)) == len(short) else whole
