"""Which blocks and heads of a model a variant goes into; whoever cannot have it is told why, and what would work."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.variant import Variant
from attnscope.core.words import blocks, count
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.exchanging.cores import has_core

OF_ATTENTION = (
    ("query", "key", "value"),
    ("mixed", "stream"),
    ("value", "stream"),
    ("value", "first_value"),
)
"""What variants take that act inside an attention call."""


def chosen_sites(
    model: nn.Module, found: Anatomy, variant: Variant, layers: Iterable[int] | None, stack: str | None
) -> tuple[Site, ...]:
    """The self-attention of the chosen blocks of one stack, in order of blocks."""
    sites = [site for site in found.sites if site.site == "self"]
    if not sites:
        raise RefusalError(f"{found.model_class} has no self-attention into which {variant.card.name} could go.")
    stacks = list(dict.fromkeys(site.stack for site in sites))
    if stack is not None and stack not in stacks:
        raise RefusalError(f"{found.model_class} has no stack '{stack}' with self-attention.{nearest(stack, stacks)}")
    if stack is None and len(stacks) > 1:
        raise RefusalError(f"{found.model_class} has the stacks {', '.join(stacks)}: say which one with stack=.")
    mine = sorted((s for s in sites if s.stack == (stack or stacks[0])), key=lambda s: (s.layer, s.nth))
    there = list(dict.fromkeys(site.layer for site in mine))
    wanted = there if layers is None else sorted({_number(layer, "block") for layer in layers})
    if not wanted:
        raise RefusalError("No block was chosen: name at least one, or leave layers out for all of them.")
    for layer in wanted:
        if layer not in there:
            raise RefusalError(
                f"{found.model_class} attends in {blocks(there)}, not in block {layer}: choose some of those."
            )
    chosen = tuple(site for site in mine if site.layer in wanted)
    _refuse_shared(found, mine, chosen)
    _refuse_unfit(model, found, variant, chosen)
    return chosen


def chosen_heads(
    found: Anatomy, variant: Variant, sites: tuple[Site, ...], heads: Iterable[int] | None
) -> tuple[int, ...] | None:
    """Heads that are treated, in every chosen block; of variants that act on values, value heads."""
    if heads is None:
        return None
    takes = variant.card.takes
    if takes not in OF_ATTENTION and variant.card.name != "qk_clip":
        raise RefusalError(
            f"{variant.card.name} acts on whole blocks and knows no heads: leave heads out, and choose layers instead."
        )
    if variant.card.name == "mixed_heads":
        raise RefusalError("mixed_heads says by kinds= which head does what ('full' is left alone): leave heads out.")
    wanted = tuple(sorted({_number(head, "head") for head in heads}))
    if not wanted:
        raise RefusalError("No head was chosen: name at least one, or leave heads out for all of them.")
    on_values = takes[0] == "value"
    for site in sites:
        there = site.kv_heads if on_values else site.heads
        for head in wanted:
            if not 0 <= head < there:
                what = "value heads" if on_values and site.kv_heads != site.heads else "heads"
                raise RefusalError(
                    f"Block {site.layer} of {found.model_class} has {what} 0 to {there - 1}, not {head}: choose some "
                    "of those."
                )
    return wanted


def _refuse_shared(found: Anatomy, sites: list[Site], chosen: tuple[Site, ...]) -> None:
    """One module that is used in several blocks (ALBERT) is treated in all of them or in none."""
    paths = {site.path for site in chosen}
    left = [site.layer for site in sites if site.path in paths and site not in chosen]
    if left:
        raise RefusalError(
            f"{found.model_class} uses the same attention in {count(len(left) + len(chosen), 'block')}: treat all of "
            "them (leave layers out)."
        )


def _refuse_unfit(model: nn.Module, found: Anatomy, variant: Variant, sites: tuple[Site, ...]) -> None:
    card = variant.card
    if card.takes in OF_ATTENTION or card.name == "contra_norm":
        own = (site for site in sites if site.route != "interface")
        foreign = next((site for site in own if not has_core(model.get_submodule(site.path))), None)
        if foreign is not None:
            raise RefusalError(
                f"{found.model_class} computes its attention itself ({foreign.path}) and asks no registry for it, so "
                f"there is no place for {card.name}: choose a variant of kind block or weights, or another model."
            )
    causal = next((site for site in sites if site.causal), None)
    if causal is not None and not card.causal:
        raise RefusalError(
            f"{card.name} looks at later tokens and cannot be causal, and {found.model_class} is: choose another "
            "variant, or a model that reads both ways."
        )


def _number(given: object, what: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise RefusalError(f"'{given}' is no {what} number: {what}s are counted 0, 1, 2.")
    return given
