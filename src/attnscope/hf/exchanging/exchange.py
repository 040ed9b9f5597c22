"""A variant put into a model that transformers made: `exchange(changes, model, name, ...) -> Treated`.

Everything that is done is undone when `changes` is closed, in reverse order: parts, hooks, weights, registry entries,
the name of the attention implementation. A loader that wants a model to stay treated keeps `changes` open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.core.registry import refuse_unknown_variant, variants
from attnscope.core.variant import Size, Variant
from attnscope.hf.anatomy.anatomy import Anatomy, Site, anatomy
from attnscope.hf.anatomy.example import Batch, example_batch, run, same_chance
from attnscope.hf.exchanging.choosing import OF_ATTENTION, chosen_heads, chosen_sites
from attnscope.hf.exchanging.part import PREFIX, Carried, Part, like, parts_of
from attnscope.hf.exchanging.registering import register
from attnscope.hf.exchanging.settings import filled_from, sorted_settings, takes_seed
from attnscope.hf.exchanging.streams import watch_stream
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating
from attnscope.hf.seeing.uncompiled import refuse_compiled

_LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


@dataclass(frozen=True)
class Treated:
    """A model with a variant in it: the same module object as before, for as long as the variant is installed."""

    model: nn.Module
    variant: Variant
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    settings: Mapping[str, Any]
    stack: str
    seed: int
    own_projections: tuple[str, ...]

    def parameters(self) -> dict[str, nn.Parameter]:
        """What the variant added, by the names under which the model has it."""
        mine = [path for path, _ in parts_of(self.model)]
        return {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if any(name.startswith(f"{path}.") for path in mine)
        }

    def projections(self) -> dict[str, nn.Parameter]:
        """The model's own parameters nearest to it: queries, keys, values and output of the treated blocks."""
        named = dict(self.model.named_parameters())
        return {name: named[name] for name in self.own_projections}


def exchange(
    changes: ExitStack,
    model: nn.Module,
    name: str,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    seed: int = 0,
    stack: str | None = None,
    example_inputs: Batch | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Treated:
    """Put the variant in. Where this fails, closing `changes` leaves the model as it was."""
    refuse_unknown_variant(name)
    refuse_installed(model)
    refuse_compiled(model)
    variant = variants()[name]
    start, calls = sorted_settings(variant, settings or {})
    found = anatomy(model, example_inputs)
    sites = chosen_sites(found, variant, layers, stack)
    which = chosen_heads(found, variant, sites, heads)
    if variant.card.takes in OF_ATTENTION:
        _into_attention(changes, model, found, variant, sites, which, seed, start, calls)
    else:
        raise RefusalError(f"{name} cannot be put into a model yet.")
    if variant.card.takes == ("query", "key", "value"):
        _refuse_other_attention(model, variant, sites, example_inputs)
    return Treated(
        model=model,
        variant=variant,
        layers=tuple(dict.fromkeys(site.layer for site in sites)),
        heads=which,
        settings=dict(settings or {}),
        stack=sites[0].stack,
        seed=seed,
        own_projections=projections_of(model, sites),
    )


def refuse_installed(model: nn.Module) -> None:
    there = next((part for _, part in parts_of(model)), None)
    if there is not None:
        raise RefusalError(
            f"{type(model).__name__} has {there.variant_name} installed already: leave that first (or give a copy of "
            "the model as it was), since two at once could not be told apart."
        )


def hang(changes: ExitStack, module: nn.Module, variant: str, part: nn.Module) -> None:
    """The part below the module, under the variant's name."""
    name = f"{PREFIX}{variant}"
    module.add_module(name, part)
    changes.callback(module._modules.pop, name, None)


def size_of(site: Site, found: Anatomy, heads: tuple[int, ...] | None, *, on_values: bool) -> Size:
    """The place as the variant's start sees it: with the heads that are treated, and no others."""
    stack = found.stack(site.stack)
    if stack is None:
        raise RefusalError(f"{found.model_class} has no blocks that pass a stream on, which variants stand on.")
    layers = sum(1 for block in stack.blocks)
    many, shared = site.heads, site.kv_heads
    if heads is not None:
        many, shared = (many, len(heads)) if on_values else (len(heads), len(heads))
    return Size(many, site.value_dim if on_values else site.dim, stack.width, shared, layers, site.layer + 1)


def _into_attention(
    changes: ExitStack,
    model: nn.Module,
    found: Anatomy,
    variant: Variant,
    sites: tuple[Site, ...],
    heads: tuple[int, ...] | None,
    seed: int,
    start: dict[str, Any],
    calls: dict[str, Any],
) -> None:
    takes, carried = variant.card.takes, Carried()
    roles = {}
    if takes == ("value", "first_value"):
        sites, roles = _chain(found, sites)
    for site in {site.path: site for site in reversed(sites)}.values():
        module = model.get_submodule(site.path)
        size = size_of(site, found, heads, on_values=takes[0] in ("value", "mixed"))
        role = roles.get(site.path, "")
        begun = {} if role == "first" else variant.start(size, **start, **_seeded(variant, seed, site.layer))
        part = Part(
            variant.card.name,
            size,
            {name: like(tensor, module) for name, tensor in begun.items()},
            {**filled_from(variant, size), **calls},
            heads=heads,
            carried=carried,
            role=role,
        )
        hang(changes, module, variant.card.name, part)
        if "stream" in takes:
            watch_stream(changes, module, found, site)
    register(changes, variant.card.name, [model.get_submodule(site.path) for site in sites])


def _seeded(variant: Variant, seed: int, layer: int) -> dict[str, int]:
    """Every block draws numbers of its own."""
    return {"seed": seed * 10_007 + layer} if takes_seed(variant) else {}


def _chain(found: Anatomy, sites: tuple[Site, ...]) -> tuple[tuple[Site, ...], dict[str, str]]:
    """The first block of the stack gives its values to all that are treated."""
    first = next(s for s in found.sites if s.site == "self" and s.stack == sites[0].stack)
    others = tuple(site for site in sites if site.path != first.path)
    if not others:
        raise RefusalError(
            "value_residual gives the first block's values to later blocks: choose at least one block after the first."
        )
    for site in others:
        if (site.kv_heads, site.value_dim) != (first.kv_heads, first.value_dim):
            raise RefusalError(
                f"Block {site.layer} of {found.model_class} has values of another shape than block {first.layer}: "
                "choose blocks that have the same."
            )
    return (first, *others), {first.path: "first", others[-1].path: "last"}


def _refuse_other_attention(
    model: nn.Module, variant: Variant, sites: tuple[Site, ...], example_inputs: Batch | None
) -> None:
    """Does this model compute softmax(scale q k) v from what a call holds? If not, more would be lost than exchanged."""
    parts = [part for _, part in parts_of(model)]
    for part in parts:
        part.held["comparing"] = 0.0
    try:
        batch = example_batch(model) if example_inputs is None else example_inputs
        with evaluating(model), same_chance(model), without_gradients():
            run(model, batch)
        found = [part.held["comparing"] for part in parts]
    finally:
        for part in parts:
            part.held.clear()
    weight = next(p for p in model.parameters() if p.is_floating_point())
    if max(found) > _LOOSE.get(weight.dtype, 3e-2):
        site = sites[found.index(max(found))]
        raise RefusalError(
            f"The attention of {type(model).__name__} in block {site.layer} is not a softmax of scaled products that "
            f"its call describes (it differs by {max(found):.1e}), so {variant.card.name} would take away more than it "
            "exchanges: choose a variant of kind output, block or weights, or another model."
        )


def projections_of(model: nn.Module, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """Names of the parameters that project queries, keys, values and outputs, with their biases."""
    named = dict(model.named_parameters())
    names: dict[str, None] = {}
    for site in sites:
        p = site.projections
        columns = [c.matrix for c in (p.query, p.key, p.value) if c is not None]
        for matrix in (*columns, *(() if p.output is None else (p.output,))):
            names[matrix.parameter] = None
            bias = f"{matrix.parameter.removesuffix('weight')}bias"
            if matrix.parameter.endswith("weight") and bias in named:
                names[bias] = None
    return tuple(names)
