"""Where numbers stop being numbers: the first module whose output is not finite though its inputs are, or the place
from which gradients that are none came.

Asked only when something is not finite already, so it may cost a forward pass. It is asked as soon as a forward pass
gives no numbers, while the weights are still those that did it: the optimiser spreads NaN over all of them. Where that
has happened, no module can be named, and that is what is said. Gradients run from the last block to the first: of those
that are not finite, the ones of the last module in the order of the forward pass came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.commands.watch.catching import Inputs, Precision, untouched
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.slots import float_tensors


@dataclass(frozen=True)
class Broken:
    """`side` is "weights", "forward", "loss", "gradient", or "unknown" and "unfound" where no module can be named;
    `layer` is None where the module is in no block."""

    side: str
    module: str = ""
    stack: str = ""
    layer: int | None = None
    spread: tuple[int, int] = (0, 0)  # modules with weights that are no numbers, and modules with weights

    def __str__(self) -> str:
        where = f"{self.module or 'the model itself'}" + ("" if self.layer is None else f" (layer {self.layer})")
        return {
            "weights": f"the weights of {where} are not finite",
            "forward": f"the forward pass first gives NaN or infinity in {where}",
            "unfound": "the forward pass gave them, and gives none when it is repeated without dropout",
            "loss": "the model gives finite numbers, and the loss made of them is not finite",
            "gradient": f"the gradient first becomes NaN or infinite at {where}",
            "unknown": "the weights of {} of {} modules are not finite, so where it began is no longer known".format(
                *self.spread
            ),
        }[self.side]


class Forwards:
    """Knows of every training forward since the last step whether it gave numbers, and finds out once where it did not.

    On an accelerator reading one number waits for the device, so only steps that are looked at are asked there.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._told = False
        self.gave_numbers = False  # some forward was asked, and all that were did
        self.broken: Broken | None = None

    def forget(self) -> None:
        self.gave_numbers, self.broken = False, None

    def ended(self, output: Any, found: Anatomy, inputs: Inputs, precision: Precision, *, looked_at: bool) -> None:
        main = _main(output)
        if main is None or (main.device.type != "cpu" and not looked_at):
            return
        # The largest entry is NaN where one is; -inf may stand in logits on purpose.
        largest = main.detach().amax() if main.numel() else torch.zeros(())
        if bool(largest.isfinite() | largest.isneginf()):
            self.gave_numbers = self.broken is None
            self._told = False
        else:
            self.gave_numbers = False
            if not self._told:
                self._told = True
                rest = [t for _, t in float_tensors(output) if t is not main]
                finite = bool(rest) and _finite(rest, masks=True)
                self.broken = broken_forward(self._model, found, inputs, precision, but_the_loss=finite)


def _main(output: Any) -> Tensor | None:
    """The loss where the model computes it, else the first table that it gives."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) else next((t for _, t in float_tensors(output)), None)


def broken_forward(
    model: nn.Module, found: Anatomy, inputs: Inputs, precision: Precision, *, but_the_loss: bool
) -> Broken:
    """Of a forward that gave no numbers, with the weights that it had: weights, a module, or the loss behind them where
    all but the loss was finite."""
    by_weights = _by_weights(model, found)
    if by_weights is not None:
        return by_weights
    _, first = _order(model, inputs, precision)
    if first is None:
        return Broken("loss" if but_the_loss else "unfound")
    return Broken("forward", first, *_block(found, first))


def broken_place(
    model: nn.Module,
    found: Anatomy,
    inputs: Mapping[str, Any] | None,
    precision: Precision | None,
    *,
    gave_numbers: bool = False,
    loss_lost: bool = False,
) -> Broken | None:
    """After the step: `gave_numbers` says that the forward of the step was seen to, so that what is wrong now came
    later, by the loss or by gradients. None where all is finite."""
    if gave_numbers and loss_lost:
        return Broken("loss")
    bad, (order, first) = _bad_gradients(model), _order(model, inputs, precision)
    gradient = None
    if bad:
        path = ([one for one in order if one in bad] or sorted(bad))[-1]
        gradient = Broken("gradient", path, *_block(found, path))
        if gave_numbers:
            return gradient
    by_weights = _by_weights(model, found)
    if by_weights is not None:
        return by_weights
    return Broken("forward", first, *_block(found, first)) if first is not None else gradient


def _by_weights(model: nn.Module, found: Anatomy) -> Broken | None:
    """One module whose weights are no numbers is where it began; several had it from each other or from an update."""
    owners = {n.rpartition(".")[0]: True for n, _ in model.named_parameters()}
    bad = {n.rpartition(".")[0] for n, p in model.named_parameters() if not bool(p.isfinite().all())}
    if len(bad) > 1:
        return Broken("unknown", spread=(len(bad), len(owners)))
    return next((Broken("weights", path, *_block(found, path)) for path in bad), None)


def _bad_gradients(model: nn.Module) -> set[str]:
    given = ((n, p.grad) for n, p in model.named_parameters())
    return {n.rpartition(".")[0] for n, g in given if g is not None and not bool(g.isfinite().all())}


def _order(
    model: nn.Module, inputs: Mapping[str, Any] | None, precision: Precision | None
) -> tuple[list[str], str | None]:
    """Modules in the order in which they finish, and the first that makes what is not finite of what is."""
    finished: list[str] = []
    first: list[str] = []
    if inputs is None or precision is None:
        return finished, None

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            finished.append(path)
            if not first and not _finite(output) and _finite([*args, *kwargs.values()], masks=True):
                first.append(path)

        return hook

    with untouched(model), Restoring() as changes:
        for path, module in model.named_modules():
            changes.after(module, after(path), kwargs=True)
        with precision():
            model(**inputs)
    return finished, first[0] if first else None


def _finite(thing: Any, *, masks: bool = False) -> bool:
    """`masks`: what is given may hold -inf on purpose."""
    return all(bool((t.isfinite() | t.isneginf() if masks else t.isfinite()).all()) for _, t in float_tensors(thing))


def _block(found: Anatomy, path: str) -> tuple[str, int | None]:
    for stack in found.stacks:
        for block in stack.blocks:
            if path == block.path or path.startswith(f"{block.path}."):
                return stack.name, block.layer
    return (found.stacks[0].name if found.stacks else "", None)
