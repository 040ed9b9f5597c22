"""Install a variant in a model: `exchange(changes, model, request) -> Treated`.

Closing `changes` undoes everything in reverse order: installed variants, hooks, weights, registry entries, the name of
the attention implementation. A loader that wants a model to stay treated does not close it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.registry import refuse_unknown_variant, variants
from attnscope.core.variant import ATTENTION, Variant
from attnscope.core.words import blocks, count
from attnscope.hf.anatomy.anatomy import Anatomy, Site, anatomy
from attnscope.hf.anatomy.example import Batch, example_batch, run, same_chance
from attnscope.hf.exchanging.call import installed_in, recipe_of
from attnscope.hf.exchanging.into_blocks import into_attention, into_blocks
from attnscope.hf.exchanging.into_weights import into_weights
from attnscope.hf.exchanging.plan import InstallPlan, sorted_settings
from attnscope.hf.exchanging.recipe import InstallRequest, Recipe
from attnscope.hf.exchanging.redirect import has_attend
from attnscope.hf.intercepting.restoring import evaluating, without_gradients
from attnscope.hf.intercepting.wrappers import refuse_compiled

OF_ATTENTION = (("query", "key", "value"), ("mixed", "stream"), ("value", "stream"), ("value", "first_value"))
"""The arguments of variants that act inside an attention call."""
_LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def chosen_sites(
    model: nn.Module, found: Anatomy, variant: Variant, chosen_blocks: Iterable[int] | None, stack: str | None
) -> tuple[Site, ...]:
    """Return the self-attention of the chosen blocks of one stack, in order of blocks."""
    mine = found.self_attention(stack)
    there = list(dict.fromkeys(site.layer for site in mine))
    wanted = there if chosen_blocks is None else sorted({_number(block, "block") for block in chosen_blocks})
    if not wanted:
        raise RefusalError("No block was chosen: name at least one, or leave `blocks=` out for all of them.")
    for block in wanted:
        if block not in there:
            raise RefusalError(
                f"{found.model_class} attends in {blocks(there)}, not in block {block}: choose some of those."
            )
    chosen = tuple(site for site in mine if site.layer in wanted)
    paths = {site.path for site in chosen}
    left = [site for site in mine if site.path in paths and site not in chosen]
    if left:  # one module that is used in several blocks (ALBERT)
        raise RefusalError(
            f"{found.model_class} uses the same attention in {count(len(left) + len(chosen), 'block')}: treat all of "
            "them (leave `blocks=` out)."
        )
    _refuse_unfit(model, found, variant, chosen)
    return chosen


def chosen_heads(
    found: Anatomy, variant: Variant, sites: tuple[Site, ...], heads: Iterable[int] | None
) -> tuple[int, ...] | None:
    """Return the heads to treat in every chosen block, or None for all; value heads if the variant acts on values."""
    if heads is None:
        return None
    takes = variant.card.takes
    if takes not in OF_ATTENTION and variant.card.name != "qk_clip":
        raise RefusalError(
            f"{variant.card.name} acts on whole blocks, not on heads: leave `heads=` out, or choose `blocks=` instead."
        )
    if variant.card.name == "mixed_heads":
        raise RefusalError(
            "The setting 'kinds' of mixed_heads assigns heads ('full' leaves one unchanged): leave `heads=` out."
        )
    wanted = tuple(sorted({_number(head, "head") for head in heads}))
    if not wanted:
        raise RefusalError("No head was chosen: name at least one, or leave `heads=` out for all of them.")
    on_values = takes[0] == "value"
    for site in sites:
        there = site.kv_heads if on_values else site.heads
        beyond = next((head for head in wanted if not 0 <= head < there), None)
        if beyond is not None:
            what = "value heads" if on_values and site.kv_heads != site.heads else "heads"
            raise RefusalError(
                f"Block {site.layer} of {found.model_class} has {what} 0 to {there - 1}, not {beyond}: choose some of "
                "those."
            )
    return wanted


def _refuse_unfit(model: nn.Module, found: Anatomy, variant: Variant, sites: tuple[Site, ...]) -> None:
    card = variant.card
    if card.takes in OF_ATTENTION or card.name == "contra_norm":
        own = (site for site in sites if site.route != "interface")
        foreign = next((site for site in own if not has_attend(model.get_submodule(site.path))), None)
        if foreign is not None:
            raise RefusalError(
                f"{found.model_class} computes its attention in its own code ({foreign.path}), so {card.name} cannot "
                "be installed: choose a variant of kind block or weights, or another model."
            )
    if any(site.causal for site in sites) and not card.causal:
        raise RefusalError(
            f"{card.name} cannot be causal, and {found.model_class} is: choose another variant, or a bidirectional "
            "model."
        )


def _number(given: object, what: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise RefusalError(f"'{given}' is not a {what} number: give integers, counted from 0.")
    return given


@dataclass(frozen=True)
class Treated:
    """A model in which a variant is installed. `model` is the same module object as before."""

    model: nn.Module
    recipe: Recipe
    own_projections: tuple[str, ...]

    @property
    def variant(self) -> Variant:
        return variants()[self.recipe.variant]

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the treated blocks."""
        return self.recipe.layers

    @property
    def heads(self) -> tuple[int, ...] | None:
        """The treated heads of every treated block; None means all."""
        return self.recipe.heads

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.recipe.settings

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the variant added, by their names in the model."""
        return {f"{path}.{name}": p for path, part in installed_in(self.model) for name, p in part.named_parameters()}

    def buffers(self) -> dict[str, Tensor]:
        """Return the tensors that the variant added and that are not trained, such as random draws."""
        return {f"{path}.{name}": b for path, part in installed_in(self.model) for name, b in part.named_buffers()}

    def projections(self) -> dict[str, nn.Parameter]:
        """Return the model's own projections of queries, keys, values and output in the treated blocks."""
        named = dict(self.model.named_parameters())
        return {name: named[name] for name in self.own_projections}


def exchange(
    changes: ExitStack, model: nn.Module, request: InstallRequest, example_inputs: Batch | None = None
) -> Treated:
    """Install the variant. If this fails, closing `changes` restores the model."""
    refuse_unknown_variant(request.variant)
    refuse_installed(model)
    refuse_compiled(model)
    variant = variants()[request.variant]
    start, calls = sorted_settings(variant, request.settings)
    found = anatomy(model, example_inputs)
    sites = chosen_sites(model, found, variant, request.blocks, request.stack)
    recipe = Recipe(
        variant=request.variant,
        layers=tuple(dict.fromkeys(site.layer for site in sites)),
        heads=chosen_heads(found, variant, sites, request.heads),
        stack=sites[0].stack,
        seed=request.seed,
        settings=dict(request.settings),
    )
    plan = InstallPlan(model, found, sites, recipe, start, calls)
    if variant.card.takes in OF_ATTENTION:
        into_attention(changes, plan)
    elif variant.card.kind == "block":
        into_blocks(changes, plan)
    else:
        into_weights(changes, plan)
    if variant.card.takes == ATTENTION:
        _refuse_other_attention(model, variant, sites, example_inputs)
    return Treated(model, recipe, projections_of(model, sites))


def refuse_installed(model: nn.Module) -> None:
    there = recipe_of(model)
    if there is not None:
        raise RefusalError(
            f"{type(model).__name__} already has {there.variant} installed, and only one variant at a time is "
            "possible: leave its `with` statement first, or give a plain copy of the model."
        )


def _refuse_other_attention(
    model: nn.Module, variant: Variant, sites: tuple[Site, ...], example_inputs: Batch | None
) -> None:
    """Refuse a model whose attention is more than softmax(scale q k) v: a variant would drop the rest."""
    parts = [part for _, part in installed_in(model)]
    for part in parts:
        part.held["comparing"] = 0.0
    try:
        batch = example_batch(model) if example_inputs is None else example_inputs
        with evaluating(model), same_chance(model), without_gradients():
            run(model, batch)
        apart = [part.held["comparing"] for part in parts]
    finally:
        for part in parts:
            part.held.clear()
    weight = next(p for p in model.parameters() if p.is_floating_point())
    if max(apart) > _LOOSE.get(weight.dtype, 3e-2):
        site = sites[apart.index(max(apart))]
        raise RefusalError(
            f"The attention of {type(model).__name__} in block {site.layer} is not plain softmax attention (it differs "
            f"by {max(apart):.1e}), so {variant.card.name} would remove more than it replaces: choose a variant of "
            "kind output, block or weights, or another model."
        )


def projections_of(model: nn.Module, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """Return the names of the parameters that project queries, keys, values and outputs, with their biases."""
    named = dict(model.named_parameters())
    names: dict[str, None] = {}
    for matrix in (matrix for site in sites for matrix in site.projections.matrices.values()):
        names[matrix.parameter] = None
        bias = f"{matrix.parameter.removesuffix('weight')}bias"
        if matrix.parameter.endswith("weight") and bias in named:
            names[bias] = None
    return tuple(names)
