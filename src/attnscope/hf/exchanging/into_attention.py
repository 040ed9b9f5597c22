"""Variants that act inside an attention call: parts below the modules that attend, and a function that asks them."""

from __future__ import annotations

from contextlib import ExitStack

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.exchanging.checkpointing import refuse_checkpointing
from attnscope.hf.exchanging.cores import through_parts
from attnscope.hf.exchanging.part import Carried, hang
from attnscope.hf.exchanging.plan import Plan
from attnscope.hf.exchanging.streams import watch_stream


def into_attention(changes: ExitStack, plan: Plan) -> None:
    """Undone by `changes`."""
    takes, carried, sites = plan.variant.card.takes, Carried(), plan.sites
    roles: dict[str, str] = {}
    if takes == ("value", "first_value"):
        sites, roles = _chain(plan.found, sites)
        refuse_checkpointing(changes, plan)
    if "stream" in takes:
        assert plan.stack  # or a refusal: the part reads what enters the module
    for site in {site.path: site for site in reversed(sites)}.values():
        module, role = plan.model.get_submodule(site.path), roles.get(site.path, "")
        hang(changes, module, plan.part(site, module, silent=role == "first", carried=carried, role=role))
        if "stream" in takes:
            watch_stream(changes, module, plan.stack)
    through_parts(changes, plan, sites)


def _chain(found: Anatomy, sites: tuple[Site, ...]) -> tuple[tuple[Site, ...], dict[str, str]]:
    """The first block of the stack gives its values to all that are treated."""
    mine = [s for s in found.sites if s.site == "self" and s.stack == sites[0].stack]
    first = min(mine, key=lambda site: (site.layer, site.nth))
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
