"""The registries of leaf rooms. A registry is a directory listing: to register a leaf, add its file."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from typing import TypeVar, overload

from attnscope.core.card import names
from attnscope.core.construction import Auto, Construction
from attnscope.core.errors import RefusalError, nearest, refuse_missing_torch
from attnscope.core.experiment import Experiment
from attnscope.core.explanation import Method
from attnscope.core.finding import FindingKind
from attnscope.core.measure import Measure
from attnscope.core.variant import Variant

SETS = ("default", "deep", "all")
METHOD_SETS = ("default", "slow", "floor", "all")
Leaf = TypeVar("Leaf")


def leaves(room: str, kind: type[Leaf]) -> dict[str, Leaf]:
    """Import the files of a leaf room and return their leaves by name: x.py must define a `kind` called x."""
    found: dict[str, Leaf] = {}
    for name in names(room):
        with refuse_missing_torch():
            leaf = getattr(importlib.import_module(f"{room}.{name}"), name, None)
        if not isinstance(leaf, kind):
            raise TypeError(f"{room}.{name} must define a {kind.__name__.lower()} called {name}")
        found[name] = leaf
    return found


@cache
def measures() -> dict[str, Measure]:
    """Return every measure by name. The first call imports torch."""
    return leaves("attnscope.measures", Measure)


def catalog() -> dict[str, Measure]:
    """Return every measure by name: `attnscope.catalog()`.

    Returns
    -------
    dict of str to Measure
        Each measure has a `card` with its title, unit, range and citation.

    Examples
    --------
    >>> "entropy" in attnscope.catalog()
    True
    """
    return measures()


@cache
def constructions() -> dict[str, Construction]:
    """Return every construction of a head by name."""
    return leaves("attnscope.constructions", Construction)


def for_auto(purpose: Auto) -> Construction | None:
    """Return the construction that `compile --method auto` uses for a purpose, or None."""
    return next((known for known in constructions().values() if known.auto == purpose), None)


def ceilings() -> tuple[Construction, ...]:
    """Return the constructions of known width that `compile --method auto` tries before it searches."""
    return tuple(known for known in constructions().values() if known.auto == "ceiling")


@cache
def variants() -> dict[str, Variant]:
    """Return every variant by name. The first call imports torch."""
    return leaves("attnscope.variants", Variant)


@overload
def variant_catalog(name: None = None) -> dict[str, Variant]: ...
@overload
def variant_catalog(name: str) -> Variant: ...
def variant_catalog(name: str | None = None) -> dict[str, Variant] | Variant:
    """Return every variant by name, or one of them: `attnscope.variants()`.

    Parameters
    ----------
    name : str, optional
        The name of one variant.

    Returns
    -------
    dict of str to Variant, or Variant
        Each variant has a `card` with its formula, cost and citation.

    Raises
    ------
    RefusalError
        If no variant has this name.

    Examples
    --------
    >>> attnscope.variants("gated_output").card.citation
    'arXiv:2505.06708'
    """
    if name is None:
        return variants()
    refuse_unknown_variant(name)
    return variants()[name]


@cache
def explanations() -> dict[str, Method]:
    """Return every explanation by name. The first call imports torch."""
    return leaves("attnscope.explanations", Method)


@cache
def experiments() -> dict[str, Experiment]:
    """Return every paper experiment by name."""
    return leaves("attnscope.papers.experiments", Experiment)


@cache
def findings() -> dict[str, FindingKind]:
    """Return every kind of finding by name, in the order of reports. Needs no torch."""
    found = leaves("attnscope.findings", FindingKind)
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def _refuse_unknown(words: Iterable[str], noun: str, known: tuple[str, ...]) -> None:
    """Refuse names that are not files of a leaf room. Imports nothing."""
    for word in words:
        if word not in known:
            raise RefusalError(f"There is no {noun} called '{word}'.{nearest(word, known)}")


def refuse_unknown_measures(words: Iterable[str]) -> None:
    _refuse_unknown(words, "measure or set", (*names("attnscope.measures"), *SETS))


def refuse_unknown_variant(name: str) -> None:
    _refuse_unknown([name], "variant", names("attnscope.variants"))


def refuse_unknown_methods(words: Iterable[str]) -> None:
    _refuse_unknown(words, "explanation or set", (*names("attnscope.explanations"), *METHOD_SETS))


def method_names(given: str | Iterable[str]) -> list[str]:
    """Return names of explanations or sets from a list or a comma-separated string."""
    words = given.split(",") if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(word, str) for word in words):
        raise RefusalError(f"Methods are names, such as 'relevance,rollout', not {given!r}: give some, or 'default'.")
    return [word.strip() for word in words if word.strip()]


def chosen_methods(words: Iterable[str]) -> tuple[Method, ...]:
    """Return the explanations for names and sets (`default`, `slow`, `all`), relevance first."""
    wanted = list(words)
    refuse_unknown_methods(wanted)
    known = explanations()
    chosen = {n for n, m in known.items() for word in wanted if word in (n, m.card.group, "all")}
    if not chosen:
        raise RefusalError("No explanation was chosen: name at least one, or a set (default, slow, all).")
    order = sorted(chosen, key=lambda name: (METHOD_SETS.index(known[name].card.group), name != "relevance", name))
    return tuple(known[name] for name in order)


def choose(words: Iterable[str], *, training: bool = False) -> tuple[Measure, ...]:
    """Return the measures for names and sets (`default`, `deep`, `all`), in catalog order.

    Measures of gradients and updates are refused unless `training` is true.
    """
    wanted, known = list(words), measures()
    refuse_unknown_measures(wanted)
    chosen: set[str] = set()
    for word in wanted:
        if word in SETS:
            chosen |= {n for n, m in known.items() if word in (m.card.group, "all") and m.card.scope != "training"}
        elif known[word].card.scope == "training" and not training:
            raise RefusalError(f"{word} is measured during training: ask for it with attnscope.watch.")
        else:
            chosen.add(word)
    if not chosen:
        raise RefusalError("No measure was chosen: name at least one, or a set (default, deep, all).")
    return tuple(m for n, m in known.items() if n in chosen)
