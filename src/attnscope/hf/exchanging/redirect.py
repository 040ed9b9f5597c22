"""Redirect attention calls to installed variants: in transformers' registry, or in modules with an `attend` function.

Such a module (as in `papers.models.nano`) has an attribute `attend(query, key, value, mask, scale)`, with tensors
`[batch, head, token, dim]` and a mask that is True for visible keys. It is replaced by a function that calls the
variant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from attnscope.core.errors import RefusalError
from attnscope.data.frame import PassedOn
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.exchanging.attending import answer
from attnscope.hf.exchanging.call import AttentionRequest, InstalledVariant, variant_in
from attnscope.hf.exchanging.plan import InstallPlan
from attnscope.hf.exchanging.recipe import PREFIX
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.observed_call import ObservedCall, collecting_reports, observe_fused, with_report
from attnscope.hf.intercepting.torch_calls import FusedCall, FusedWatch, ReportedCall, announce, is_watched, unwatched
from attnscope.matrix.scores import Scores

KNOWN = ("sdpa", "eager")
_NUMBER = count(1)


def register(changes: ExitStack, variant: str, modules: Iterable[nn.Module]) -> None:
    """Make the configurations of these modules name an attention function that calls variants; undone by `changes`.

    The function and a mask function are registered together under a new name: without a mask function of that name a
    model would make no mask at all. The mask function is the one that the model used before, so masks do not change.
    Modules without a variant call the function they had. transformers cannot unregister an entry, so `changes` removes
    it from the mapping that all registries share.
    """
    owners = (getattr(module, "config", None) for module in modules)
    configs: dict[int, Any] = {id(config): config for config in owners if config is not None}
    for config in configs.values():
        previous = config._attn_implementation
        if previous not in KNOWN:
            raise RefusalError(
                f"The masks of the attention implementation '{previous}' cannot be read: load the model with "
                "attn_implementation='sdpa' or 'eager'."
            )
        name = f"{PREFIX}{variant}_{next(_NUMBER)}"
        changes.callback(AttentionInterface._global_mapping.pop, name, None)
        changes.callback(AttentionMaskInterface._global_mapping.pop, name, None)
        AttentionInterface.register(name, attention_of_variants(previous))
        AttentionMaskInterface.register(name, AttentionMaskInterface._global_mapping[previous])
        changes.callback(setattr, config, "_attn_implementation_internal", previous)
        config._attn_implementation_internal = name


def attention_of_variants(previous: str) -> Callable[..., Any]:
    """Return an attention function that calls a module's variant, or the previous function if it has none."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
    ) -> Any:
        original, part = original_attention(module, previous), variant_in(module)
        request = AttentionRequest(original, previous == "sdpa", module, query, key, value, attention_mask, options)
        return request.plain() if part is None else answer(part, request)

    return attend


def original_attention(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """Return the function that a module called before. The file of its class may have its own registry."""
    home = sys.modules.get(type(module).__module__)
    if implementation == "eager":
        written_out = getattr(home, "eager_attention_forward", None)
        if written_out is None:
            raise RefusalError(
                f"{type(module).__name__} has no eager attention: load the model with attn_implementation='sdpa'."
            )
        return written_out  # type: ignore[no-any-return]
    registry = getattr(home, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    return registry[implementation]  # type: ignore[no-any-return]


def refuse_checkpointing(changes: ExitStack, plan: InstallPlan) -> None:
    """Refuse gradient checkpointing for variants that pass tensors from block to block.

    It runs each block a second time, without the tensors from other blocks.
    """
    name = plan.recipe.variant

    def refuse(module: nn.Module, args: tuple[Any, ...]) -> None:
        if module.training and getattr(module, "gradient_checkpointing", False):
            raise RefusalError(
                f"{name} passes tensors from block to block, which gradient checkpointing would lose: turn it off "
                "(model.gradient_checkpointing_disable())."
            )

    for path in dict.fromkeys(block.path for block in plan.stack.blocks):
        changes.callback(plan.model.get_submodule(path).register_forward_pre_hook(refuse).remove)


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def has_attend(module: nn.Module) -> bool:
    """Return whether a module stores its attention function as an attribute."""
    return callable(vars(module).get("attend"))


def redirect_attention(changes: ExitStack, plan: InstallPlan, sites: tuple[Site, ...]) -> None:
    """Make the attention of these sites call its variant; undone by `changes`."""
    modules = [plan.model.get_submodule(site.path) for site in sites]
    kept: list[Any] = [module for module in modules if has_attend(module)]
    for module in kept:
        changes.callback(setattr, module, "attend", module.attend)
        module.attend = RedirectedAttend(module, module.attend)
    register(changes, plan.recipe.variant, [module for module in modules if module not in kept])


class RedirectedAttend:
    """An `attend` function that calls the variant of its module. A copied module calls its own copy of the variant."""

    def __init__(self, module: nn.Module, before: Attend) -> None:
        self.module, self.before = module, before

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        part = variant_in(self.module)
        if part is None:
            return self.before(query, key, value, mask, scale)
        request = AttentionRequest(self._original, False, self.module, query, key, value, mask, {"scaling": scale})
        return self._watched(part, request) if is_watched() else answer(part, request)[0].transpose(1, 2)

    def _original(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float
    ) -> tuple[Tensor, None]:
        return self.before(query, key, value, mask, scaling).transpose(1, 2), None

    def _watched(self, part: InstalledVariant, request: AttentionRequest) -> Tensor:
        """Answer the request, and announce it to watches as one call."""
        calls: list[FusedCall] = []
        with unwatched(), collecting_reports() as reports, FusedWatch(calls.append):
            mixed = answer(part, request)[0].transpose(1, 2)
        query, key, value = request.query.detach(), request.key.detach(), request.value.detach()
        masks = MaskReader()
        if reports and reports[-1].weights is not None:
            scores, route = Scores(query=query, key=key, scale=request.options["scaling"]), "sdpa"
        else:
            first = observe_fused(calls[0], masks)
            scores, route = first.scores, first.route
        passed_on = PassedOn(mixed, lambda output: output.transpose(1, 2))
        inputs = (request.query, request.value)
        observed = ObservedCall(scores, value, mixed.detach().transpose(1, 2), route, inputs, passed_on=passed_on)
        announce(ReportedCall(with_report(observed, reports[-1], calls, masks) if reports else observed))
        return mixed
