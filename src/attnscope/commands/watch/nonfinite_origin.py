"""Find where numbers stop being finite: weights, a module of the forward pass, the loss, or a gradient.

This runs only when something is not finite, so it may cost a forward pass. A nonfinite forward is searched at once,
before the optimiser spreads NaN over all weights and no module can be named any more. Gradients flow from the last
block to the first, so of all modules with a gradient that is not finite, the last one in forward order was the first to
have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.commands.watch.forward_capture import AutocastState, Inputs, without_side_effects
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.intercepting.owners import float_tensors
from attnscope.hf.intercepting.restoring import Restoring


@dataclass(frozen=True)
class NonfiniteOrigin:
    """The place where numbers stopped being finite.

    `side` is "weights", "forward", "loss" or "gradient", else "unknown" or "unfound" if no module can be named. `layer`
    is None if the module is outside all blocks.
    """

    side: str
    module: str = ""
    stack: str = ""
    layer: int | None = None
    spread: tuple[int, int] = (0, 0)  # number of modules with nonfinite weights, number of modules with weights

    def __str__(self) -> str:
        where = f"{self.module or 'the model itself'}" + ("" if self.layer is None else f" (block {self.layer})")
        bad, all_modules = self.spread
        return {
            "weights": f"the weights of {where} are not finite",
            "forward": f"the forward pass first gives NaN or infinity in {where}",
            "unfound": "they came from the forward pass, but not when it was repeated without dropout",
            "loss": "the output of the model is finite, but the loss is not",
            "gradient": f"the gradient first becomes NaN or infinite at {where}",
            "unknown": f"the weights of {bad} of {all_modules} modules are not finite, so the origin is lost",
        }[self.side]


class ForwardCheck:
    """Checks whether the training forwards since the last step were finite, and if not, searches for the origin once.

    On an accelerator only steps with a look are checked, because reading a number waits for the device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._reported = False
        self.all_finite = False  # at least one forward was checked, and all were finite
        self.origin: NonfiniteOrigin | None = None

    def forget(self) -> None:
        self.all_finite, self.origin = False, None

    def check(self, output: Any, anatomy: Anatomy, inputs: Inputs, autocast: AutocastState, *, due: bool) -> None:
        """Check one output; `due` says that this step has a look."""
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        main = loss if isinstance(loss, Tensor) else next((t for _, t in float_tensors(output)), None)
        if main is None or (main.device.type != "cpu" and not due):
            return
        # The maximum is NaN if any entry is. Logits may hold -inf on purpose.
        largest = main.detach().amax() if main.numel() else torch.zeros(())
        if bool(largest.isfinite() | largest.isneginf()):
            self.all_finite = self.origin is None
            self._reported = False
            return
        self.all_finite = False
        if self._reported:
            return
        self._reported = True
        others = [t for _, t in float_tensors(output) if t is not main]
        origin = _weights_origin(self._model, anatomy)
        if origin is None:
            _, module = _forward_order(self._model, inputs, autocast)
            only_loss = bool(others) and _finite(others, masks=True)
            origin = NonfiniteOrigin("loss" if only_loss else "unfound")
            if module is not None:
                origin = NonfiniteOrigin("forward", module, *_block_of(anatomy, module))
        self.origin = origin

    def find_after_step(
        self, anatomy: Anatomy, inputs: Inputs | None, autocast: AutocastState, *, loss_lost: bool
    ) -> NonfiniteOrigin | None:
        """Return the origin, or None if all is finite. After a finite forward it is the loss or a gradient."""
        if self.origin is not None:
            return self.origin
        if self.all_finite and loss_lost:
            return NonfiniteOrigin("loss")
        gradients = ((n, p.grad) for n, p in self._model.named_parameters())
        bad = {n.rpartition(".")[0] for n, g in gradients if g is not None and not bool(g.isfinite().all())}
        order, first = _forward_order(self._model, inputs, autocast)
        by_gradient = None
        if bad:
            path = ([module for module in order if module in bad] or sorted(bad))[-1]
            by_gradient = NonfiniteOrigin("gradient", path, *_block_of(anatomy, path))
            if self.all_finite:
                return by_gradient
        by_weights = _weights_origin(self._model, anatomy)
        if by_weights is not None:
            return by_weights
        return by_gradient if first is None else NonfiniteOrigin("forward", first, *_block_of(anatomy, first))


def _weights_origin(model: nn.Module, anatomy: Anatomy) -> NonfiniteOrigin | None:
    """Return the only module whose weights are not finite. With several, the origin is unknown."""
    owners = {n.rpartition(".")[0] for n, _ in model.named_parameters()}
    bad = {n.rpartition(".")[0] for n, p in model.named_parameters() if not bool(p.isfinite().all())}
    if len(bad) > 1:
        return NonfiniteOrigin("unknown", spread=(len(bad), len(owners)))
    return next((NonfiniteOrigin("weights", path, *_block_of(anatomy, path)) for path in bad), None)


def _forward_order(model: nn.Module, inputs: Inputs | None, autocast: AutocastState) -> tuple[list[str], str | None]:
    """Return the modules in the order they finish, and the first that turns finite inputs into a nonfinite output."""
    finished: list[str] = []
    first: list[str] = []
    if inputs is None:
        return finished, None

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            finished.append(path)
            if not first and not _finite(output) and _finite([*args, *kwargs.values()], masks=True):
                first.append(path)

        return hook

    with without_side_effects(model), Restoring() as changes:
        for path, module in model.named_modules():
            changes.after(module, after(path), kwargs=True)
        with autocast():
            model(**inputs)
    return finished, first[0] if first else None


def _finite(tensors: Any, *, masks: bool = False) -> bool:
    """Return whether all numbers are finite; `masks` allows -inf."""
    return all(bool((t.isfinite() | t.isneginf() if masks else t.isfinite()).all()) for _, t in float_tensors(tensors))


def _block_of(anatomy: Anatomy, path: str) -> tuple[str, int | None]:
    for stack in anatomy.stacks:
        for block in stack.blocks:
            if path == block.path or path.startswith(f"{block.path}."):
                return stack.name, block.layer
    return (anatomy.stacks[0].name if anatomy.stacks else "", None)
