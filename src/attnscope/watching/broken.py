"""Where numbers stop being numbers: the first module whose output is not finite though its inputs are, or the place
from which gradients that are none came.

Asked only when something is not finite already, so it may cost a forward pass. Gradients run from the last block to
the first: of those that are not finite, the ones of the last module in the order of the forward pass came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.seeing.restoring import Restoring
from attnscope.hf.seeing.tensors import float_tensors
from attnscope.watching.catching import Precision
from attnscope.watching.untouched import untouched


@dataclass(frozen=True)
class Broken:
    """`side` is "weights", "forward" or "gradient"; `layer` None where the module is in no block."""

    side: str
    module: str
    stack: str
    layer: int | None

    def __str__(self) -> str:
        where = f"{self.module or 'the model itself'}" + ("" if self.layer is None else f" (layer {self.layer})")
        return {
            "weights": f"the weights of {where} are not finite",
            "forward": f"the forward pass first gives NaN or infinity in {where}",
            "gradient": f"the gradient first becomes NaN or infinite at {where}",
        }[self.side]


def broken_place(
    model: nn.Module, found: Anatomy, inputs: Mapping[str, Any] | None, precision: Precision | None
) -> Broken | None:
    """The first place, weights before forward before gradients; None where all is finite."""
    order = _order(model, inputs, precision)
    for side, bad in (("weights", _bad_weights(model)), ("forward", order[1]), ("gradient", _bad_gradients(model))):
        if bad:
            places = [path for path in order[0] if path in bad] or sorted(bad)
            path = places[-1] if side == "gradient" else places[0]
            return Broken(side, path, *_block(found, path))
    return None


def _bad_weights(model: nn.Module) -> set[str]:
    return {n.rpartition(".")[0] for n, p in model.named_parameters() if not bool(p.isfinite().all())}


def _bad_gradients(model: nn.Module) -> set[str]:
    given = ((n, p.grad) for n, p in model.named_parameters())
    return {n.rpartition(".")[0] for n, g in given if g is not None and not bool(g.isfinite().all())}


def _order(
    model: nn.Module, inputs: Mapping[str, Any] | None, precision: Precision | None
) -> tuple[list[str], set[str]]:
    """Modules in the order in which they finish, and the first that makes what is not finite of what is."""
    finished: list[str] = []
    first: set[str] = set()
    if inputs is None or precision is None:
        return finished, first

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            finished.append(path)
            if not first and not _finite(output) and _finite([*args, *kwargs.values()], masks=True):
                first.add(path)

        return hook

    with untouched(model), Restoring() as changes:
        for path, module in model.named_modules():
            changes.after(module, after(path), kwargs=True)
        with precision():
            model(**inputs)
    return finished, first


def _finite(thing: Any, *, masks: bool = False) -> bool:
    """`masks`: what is given may hold -inf on purpose."""
    return all(bool((t.isfinite() | t.isneginf() if masks else t.isfinite()).all()) for _, t in float_tensors(thing))


def _block(found: Anatomy, path: str) -> tuple[str, int | None]:
    for stack in found.stacks:
        for block in stack.blocks:
            if path == block.path or path.startswith(f"{block.path}."):
                return stack.name, block.layer
    return (found.stacks[0].name if found.stacks else "", None)
