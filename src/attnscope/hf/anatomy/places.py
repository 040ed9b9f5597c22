"""Which attention call a person means by a layer and a head of a model, and what attention writes in a block."""

from __future__ import annotations

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.words import blocks
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site
from attnscope.hf.anatomy.tape import Place


def self_attention_site(found: Anatomy, layer: int, head: int, stack: str | None = None) -> Site:
    """The self-attention of one layer, or a sentence that says which layers and heads there are."""
    sites = [site for site in found.sites if site.site == "self"]
    if not sites:
        raise RefusalError(f"{found.model_class} has cross-attention only: choose a model with self-attention.")
    stacks = list(dict.fromkeys(site.stack for site in sites))
    if stack is None and len(stacks) > 1:
        raise RefusalError(f"{found.model_class} has the stacks {', '.join(stacks)}: say which one with stack=.")
    if stack is not None and stack not in stacks:
        raise RefusalError(f"{found.model_class} has no stack '{stack}' with self-attention.{nearest(stack, stacks)}")
    chosen = [site for site in sites if site.stack == (stack or stacks[0])]
    here = [site for site in chosen if site.layer == layer]
    if not here:
        raise RefusalError(
            f"{found.model_class} attends in {blocks(site.layer for site in chosen)}, not in block {layer}: choose one "
            "of those."
        )
    if not 0 <= head < here[0].heads:
        raise RefusalError(
            f"Block {layer} of {found.model_class} has heads 0 to {here[0].heads - 1}, not {head}: choose one of those."
        )
    return here[0]


def attention_writes(block: Block) -> set[Place]:
    """The writes of attention, or of what stands in its place: those before `middle`; in parallel blocks, `middle`."""
    writes = block.writes
    if block.kind == "MLP":
        return set()
    if writes.norm == "parallel":
        return {writes.middle} if writes.middle else set()
    upto = next((i for i, one in enumerate(writes.identities) if i and one.before == writes.middle), None)
    if writes.middle is None or upto is None:
        upto = len(writes.identities)  # attention writes last, or alone
    return {place for identity in writes.identities[:upto] for place in identity.writes}
