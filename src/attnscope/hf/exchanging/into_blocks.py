"""Install variants of attention calls, norms and writes, as submodules with hooks. `changes` undoes everything.

    write              conditional_gate and contra_norm on attention writes; sandwich_norm on every write
    stream, normed     `stream` replaces a norm of the stream; `normed` follows a norm before attention or MLP
    streams            after the last block, on the outputs of all blocks

The anatomy says where the writes and the norms are. Hooks run inside the call of a block, so that they also run when
gradient checkpointing repeats the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site
from attnscope.hf.anatomy.recording import Location
from attnscope.hf.exchanging.attending import watch_stream
from attnscope.hf.exchanging.call import InstalledVariant, SharedTensors, attach, on_variant
from attnscope.hf.exchanging.plan import InstallPlan
from attnscope.hf.exchanging.redirect import redirect_attention, refuse_checkpointing
from attnscope.hf.intercepting.owners import arguments, at, with_output
from attnscope.hf.intercepting.torch_calls import unwatched


def into_attention(changes: ExitStack, plan: InstallPlan) -> None:
    """Install a variant that acts inside an attention call."""
    takes, carried, sites = plan.variant.card.takes, SharedTensors(), plan.sites
    roles: dict[str, str] = {}
    if takes == ("value", "first_value"):
        sites, roles = _chain(plan.found, sites)
        refuse_checkpointing(changes, plan)
    stack = plan.stack if "stream" in takes else None  # `plan.stack` refuses a model without a stream
    for site in {site.path: site for site in reversed(sites)}.values():
        module, role = plan.model.get_submodule(site.path), roles.get(site.path, "")
        attach(changes, module, plan.part(site, module, silent=role == "first", carried=carried, role=role))
        if stack is not None:
            watch_stream(changes, module, stack)
    redirect_attention(changes, plan, sites)


def _chain(found: Anatomy, sites: tuple[Site, ...]) -> tuple[tuple[Site, ...], dict[str, str]]:
    """Return the sites of value_residual, beginning with the stack's first block, and the roles of the first and
    last."""
    first = found.self_attention(sites[0].stack)[0]
    others = tuple(site for site in sites if site.path != first.path)
    if not others:
        raise RefusalError(
            "value_residual gives the first block's values to later blocks: choose at least one block after the first."
        )
    for site in others:
        if (site.kv_heads, site.value_dim) != (first.kv_heads, first.value_dim):
            raise RefusalError(
                f"The values of block {site.layer} of {found.model_class} have another shape than those of block "
                f"{first.layer}: choose blocks with the same shape."
            )
    return (first, *others), {first.path: "first", others[-1].path: "last"}


def into_blocks(changes: ExitStack, plan: InstallPlan) -> None:
    """Install a variant of norms, of writes, or of the stream after the last block."""
    takes = plan.variant.card.takes
    if takes == ("streams",):
        _install_fusion(changes, plan)
    elif takes in (("stream",), ("normed",)):
        _install_on_norms(changes, plan)
    else:
        _install_on_writes(changes, plan)


def _install_on_writes(changes: ExitStack, plan: InstallPlan) -> None:
    carried, name = SharedTensors(), plan.recipe.variant
    for block in plan.blocks:
        site = plan.site_of(block)
        for location in _writes(plan, block):
            module = plan.model.get_submodule(location.path)
            attach(changes, module, plan.part(site, module, carried=carried, slot=location.slot))
            changes.callback(module.register_forward_hook(on_variant(_change_write)).remove)
        if name == "conditional_gate":
            module = plan.model.get_submodule(block.path)
            attach(changes, module, plan.part(site, module, silent=True, carried=carried, slot=block.enters))
            changes.callback(module.register_forward_pre_hook(on_variant(_keep_entering), with_kwargs=True).remove)
            changes.callback(module.register_forward_hook(on_variant(_forget), always_call=True).remove)
        if name == "contra_norm":
            module = plan.model.get_submodule(site.path)
            attach(changes, module, plan.part(site, module, silent=True, carried=carried, role="sees"))
    if name == "contra_norm":
        redirect_attention(changes, plan, plan.sites)


def _writes(plan: InstallPlan, block: Block) -> Iterator[Location]:
    if not block.writes.separable:
        raise RefusalError(
            f"The writes of attention and MLP cannot be separated in {block.path} of {plan.found.model_class}, so "
            f"{plan.recipe.variant} cannot be installed: choose other blocks, or a variant of another kind."
        )
    mine = block.attention_writes
    for location in (location for identity in block.writes.identities for location in identity.writes):
        if location in mine or plan.recipe.variant == "sandwich_norm":
            if location.path == block.path:
                raise RefusalError(
                    f"The attention write in {block.path} of {plan.found.model_class} is not the output of a module, "
                    f"so {plan.recipe.variant} cannot be installed: choose a variant of another kind."
                )
            yield location


def _change_write(part: InstalledVariant, args: tuple[Any, ...], output: Any) -> Any:
    write, kept = at(output, part.slot), part.carried.tensors
    if "stream" in part.variant.card.takes:
        changed = part.variant(write, kept.pop("entering").reshape(write.shape), **part.arguments)
    elif "rule" in kept:
        visible, causal, shape = kept.pop("rule")
        tokens = write.reshape(*shape, write.shape[-1])
        with unwatched():  # not attention of the model
            changed = part.variant(tokens, visible=visible, causal=causal, **part.arguments).reshape(write.shape)
    else:
        changed = part.variant(write, **part.arguments)
    return with_output(output, part.slot, changed)


def _keep_entering(part: InstalledVariant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    part.carried.tensors["entering"] = arguments(args, kwargs)[part.slot]


def _forget(part: InstalledVariant, *_: Any) -> None:
    part.carried.tensors.clear()


def _install_on_norms(changes: ExitStack, plan: InstallPlan) -> None:
    behind = plan.variant.card.takes == ("normed",)
    for block in plan.blocks:
        paths = [path for path in block.writes.norms if path != block.path]
        if not paths or (behind and block.writes.norm not in ("pre", "parallel")):
            words = "precedes attention and MLP" if behind else "was found"
            raise RefusalError(
                f"No norm {words} in block {block.layer} of {plan.found.model_class} (its norms are: "
                f"{block.writes.norm}), so {plan.recipe.variant} cannot be installed: choose another variant."
            )
        for path in paths:
            module = plan.model.get_submodule(path)
            attach(changes, module, plan.part(plan.site_of(block), module))
            hook = on_variant(_behind_norm if behind else _instead_of_norm)
            changes.callback(module.register_forward_hook(hook).remove)


def _behind_norm(part: InstalledVariant, args: tuple[Any, ...], output: Any) -> Any:
    return part.variant(output, **part.arguments)


def _instead_of_norm(part: InstalledVariant, args: tuple[Any, ...], output: Any) -> Any:
    return part.variant(args[0], **part.arguments)


def _install_fusion(changes: ExitStack, plan: InstallPlan) -> None:
    """Make every block store its output, and the last block return the fusion of all."""
    blocks, carried = plan.stack.blocks, SharedTensors()
    if len(plan.sites) != len({s.layer for s in plan.found.sites if s.stack == plan.stack.name and s.site == "self"}):
        raise RefusalError("fusion reads the outputs of all blocks: leave `blocks=` out.")
    if not plan.stack.chained or len({block.path for block in blocks}) != len(blocks):
        raise RefusalError(
            f"fusion needs blocks that are separate modules and pass one stream on, unlike those of "
            f"{plan.found.model_class}: choose another variant."
        )
    refuse_checkpointing(changes, plan)
    for block in blocks:
        module, last = plan.model.get_submodule(block.path), block is blocks[-1]
        site = next((s for s in plan.sites if s.layer == block.layer), plan.sites[-1])
        role = "first" if block is blocks[0] else "last" if last else ""
        attach(changes, module, plan.part(site, module, silent=not last, carried=carried, role=role, slot=block.leaves))
        changes.callback(module.register_forward_hook(on_variant(_fuse)).remove)


def _fuse(part: InstalledVariant, args: tuple[Any, ...], output: Any) -> Any:
    streams: list[Tensor] = part.carried.tensors.setdefault("streams", [])
    if part.role == "first":
        streams.clear()
    streams.append(at(output, part.slot))
    if part.role != "last":
        return None
    whole = part.carried.tensors.pop("streams")
    if len(whole) != part.size.layers:
        raise RefusalError(
            f"fusion got the outputs of {len(whole)} blocks, and the model has {part.size.layers}: run the whole model."
        )
    return with_output(output, part.slot, part.variant(torch.stack(whole), **part.arguments))
