"""Finding leaf files: a room's registry is its directory listing, so adding a file is the whole registration."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from typing import TypeVar, overload

from attnscope.core.card import names
from attnscope.core.construction import Auto, Construction
from attnscope.core.errors import RefusalError, asking_for_torch, nearest
from attnscope.core.experiment import Experiment
from attnscope.core.explanation import Method
from attnscope.core.finding import FindingKind
from attnscope.core.measure import Measure
from attnscope.core.variant import Variant

SETS = ("default", "deep", "all")
METHOD_SETS = ("default", "slow", "floor", "all")
Leaf = TypeVar("Leaf")


def leaves(room: str, kind: type[Leaf]) -> dict[str, Leaf]:
    """What the files of a leaf room define, by name: file x.py must define a `kind` called x."""
    found: dict[str, Leaf] = {}
    for name in names(room):
        with asking_for_torch():
            thing = getattr(importlib.import_module(f"{room}.{name}"), name, None)
        if not isinstance(thing, kind):
            raise TypeError(f"{room}.{name} must define a {kind.__name__.lower()} called {name}")
        found[name] = thing
    return found


@cache
def measures() -> dict[str, Measure]:
    """Every measure, by name. Imports the leaf files, and so torch, on first use."""
    return leaves("attnscope.measures", Measure)


def catalog() -> dict[str, Measure]:
    """`attnscope.catalog()`: every measure by name, with its card."""
    return measures()


@cache
def constructions() -> dict[str, Construction]:
    """Every way to build a head for a pattern, by name."""
    return leaves("attnscope.constructions", Construction)


def for_auto(purpose: Auto) -> Construction | None:
    """The construction whose card says that `compile --method auto` takes it for this; None where there is none."""
    return next((one for one in constructions().values() if one.auto == purpose), None)


def ceilings() -> tuple[Construction, ...]:
    """The constructions of known width that `compile --method auto` tries before it searches."""
    return tuple(one for one in constructions().values() if one.auto == "ceiling")


@cache
def variants() -> dict[str, Variant]:
    """Every attention that can be exchanged, by name. Imports the leaf files, and so torch, on first use."""
    return leaves("attnscope.variants", Variant)


@overload
def variant_catalog(name: None = None) -> dict[str, Variant]: ...
@overload
def variant_catalog(name: str) -> Variant: ...
def variant_catalog(name: str | None = None) -> dict[str, Variant] | Variant:
    """`attnscope.variants()`: every variant by name, with its card; or the one that is named."""
    if name is None:
        return variants()
    refuse_unknown_variant(name)
    return variants()[name]


@cache
def explanations() -> dict[str, Method]:
    """Every way to explain an answer, by name. Imports the leaf files, and so torch, on first use."""
    return leaves("attnscope.explanations", Method)


@cache
def experiments() -> dict[str, Experiment]:
    """Every paper whose claims can be run again, by name."""
    return leaves("attnscope.papers.experiments", Experiment)


@cache
def findings() -> dict[str, FindingKind]:
    """Every kind of finding, by name, in the order in which they are told. Needs no torch."""
    found = leaves("attnscope.findings", FindingKind)
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def refuse_unknown_measures(words: Iterable[str]) -> None:
    """By the names of files alone, before anything is imported."""
    known = (*names("attnscope.measures"), *SETS)
    for word in words:
        if word not in known:
            raise RefusalError(f"There is no measure or set called '{word}'.{nearest(word, known)}")


def refuse_unknown_variant(name: str) -> None:
    """By the names of files alone, before anything is imported."""
    known = names("attnscope.variants")
    if name not in known:
        raise RefusalError(f"There is no variant called '{name}'.{nearest(name, known)}")


def refuse_unknown_methods(words: Iterable[str]) -> None:
    """By the names of files alone, before anything is imported."""
    known = (*names("attnscope.explanations"), *METHOD_SETS)
    for word in words:
        if word not in known:
            raise RefusalError(f"There is no explanation or set called '{word}'.{nearest(word, known)}")


def method_names(given: str | Iterable[str]) -> list[str]:
    """Names of explanations or of sets, as a list or with commas between them."""
    pieces = given.split(",") if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(one, str) for one in pieces):
        raise RefusalError(f"Methods are names, such as 'relevance,rollout', not {given!r}: name some, or 'default'.")
    return [one.strip() for one in pieces if one.strip()]


def chosen_methods(words: Iterable[str]) -> tuple[Method, ...]:
    """The explanations that names and set names (`default`, `slow`, `all`) stand for, relevance first."""
    asked = list(words)
    refuse_unknown_methods(asked)
    known = explanations()
    chosen = {n for n, m in known.items() for word in asked if word in (n, m.card.group, "all")}
    if not chosen:
        raise RefusalError("No explanation was chosen: name at least one, or a set (default, slow, all).")
    order = sorted(chosen, key=lambda name: (METHOD_SETS.index(known[name].card.group), name != "relevance", name))
    return tuple(known[name] for name in order)


def choose(words: Iterable[str], *, training: bool = False) -> tuple[Measure, ...]:
    """The measures that a list of names and set names (`default`, `deep`, `all`) stands for, in catalog order; those of
    gradients and updates only where a model is being trained."""
    known = measures()
    chosen: set[str] = set()
    for word in words:
        if word in SETS:
            chosen |= {n for n, m in known.items() if word in (m.card.group, "all") and m.card.scope != "training"}
        elif word in known and known[word].card.scope == "training" and not training:
            raise RefusalError(f"{word} is a number of a model in training: ask for it with attnscope.watch.")
        elif word in known:
            chosen.add(word)
        else:
            raise RefusalError(f"There is no measure or set called '{word}'.{nearest(word, [*known, *SETS])}")
    if not chosen:
        raise RefusalError("No measure was chosen: name at least one, or a set (default, deep, all).")
    return tuple(m for n, m in known.items() if n in chosen)
