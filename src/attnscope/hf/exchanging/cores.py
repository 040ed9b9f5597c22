"""Where parts get a say: in the registry of transformers, or in modules that keep their attention as a function.

Such a module (those of `models.nano` are) has an attribute `attend(query, key, value, mask, scale)`, with tensors
`[batch, head, token, dim]` and a mask that is True where a key is seen. It is exchanged for one that asks the part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.exchanging.attending import answer
from attnscope.hf.exchanging.part import Part, part_of
from attnscope.hf.exchanging.plan import Plan
from attnscope.hf.exchanging.registering import register
from attnscope.hf.seeing.masks import MaskReader
from attnscope.hf.seeing.primitives import FusedCall, FusedWatch, SightedCall, announce, is_watched, looking_away
from attnscope.hf.seeing.sighting import Sighting, sight_fused
from attnscope.hf.seeing.telling import listening
from attnscope.hf.seeing.told_sighting import as_told
from attnscope.matrix.scores import Scores
from attnscope.trace.frame import PassedOn

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def has_core(module: nn.Module) -> bool:
    """Whether a module keeps its attention as a function of its own."""
    return callable(vars(module).get("attend"))


def through_parts(changes: ExitStack, plan: Plan, sites: tuple[Site, ...]) -> None:
    """From here on the attention of these places asks the part below it."""
    modules = [plan.model.get_submodule(site.path) for site in sites]
    kept: list[Any] = [module for module in modules if has_core(module)]
    for module in kept:
        changes.callback(setattr, module, "attend", module.attend)
        module.attend = Core(module, module.attend)
    register(changes, plan.recipe.variant, [module for module in modules if module not in kept])


class Core:
    """An `attend` that asks the part of its module; copied with the module, it asks the copy's."""

    def __init__(self, module: nn.Module, before: Attend) -> None:
        self.module, self.before = module, before

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        part = part_of(self.module)
        if part is None:
            return self.before(query, key, value, mask, scale)
        if is_watched():
            return self._watched(part, (query, key, value), mask, scale)
        return self._answer(part, (query, key, value), mask, scale)

    def _answer(self, part: Part, tensors: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, scale: float) -> Tensor:
        mixed, _ = answer(part, self._original, self.module, tensors, mask, {"scaling": scale}, fused=False)
        return mixed.transpose(1, 2)

    def _original(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float
    ) -> tuple[Tensor, None]:
        return self.before(query, key, value, mask, scaling).transpose(1, 2), None

    def _watched(self, part: Part, tensors: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, scale: float) -> Tensor:
        """What happens inside is not seen piece by piece, but told as one call."""
        calls: list[FusedCall] = []
        with looking_away(), listening() as heard, FusedWatch(calls.append):
            mixed = self._answer(part, tensors, mask, scale)
        query, key, value = (one.detach() for one in tensors)
        masks = MaskReader()
        if heard and heard[-1].weights is not None:
            scores, route = Scores(query=query, key=key, scale=scale), "sdpa"
        else:
            first = sight_fused(calls[0], masks)
            scores, route = first.scores, first.route
        passed_on = PassedOn(mixed, lambda output: output.transpose(1, 2))
        given = (tensors[0], tensors[2])
        seen = Sighting(scores, value, mixed.detach().transpose(1, 2), route, given, passed_on=passed_on)
        announce(SightedCall(as_told(seen, heard[-1], calls, masks) if heard else seen))
        return mixed
