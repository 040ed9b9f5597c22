"""Taking skips and MLPs out of a model, for as long as a context lasts: the four variants of arXiv:2103.03404.

    with cut(model, anatomy(model), VARIANTS["san"]):
        model(**batch)

What the variants mean, in one place. A block is a chain of states: every write of a module is added to a state, and
post-norm blocks normalise the sum (`hf.anatomy.writes` finds them by arithmetic). Norms stay where they are in all
variants.

    no skip     the state is not added to the attention write: x <- f(x) where it was x <- x + f(x), and norm(f(x))
                where it was norm(x + f(x)). The skip past the MLP stays, as in the authors' own surgery;
                `mlp_skip=False` takes it out too
    no MLP      the MLP writes nothing: its skip hands the state on (through the norm, in post-norm blocks)
    parallel    x + attention(x) + mlp(x) has one skip: without it attention(x) + mlp(x) is left
    shared      a block that is used several times (ALBERT) is cut in each of its uses
    hybrid      in a block without attention, what stands in its place (Mamba, linear attention) is treated as attention
                is; one that is an MLP alone hands its stream on where MLPs are left out

It is done by hooks on the modules that write: one returns its write less the state, so that the model's own addition
leaves the write alone, the other returns zeros. The rounding that this costs is of the size of the rounding of the
state itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Block
from attnscope.hf.anatomy.places import attention_writes
from attnscope.hf.anatomy.tape import Place
from attnscope.hf.seeing.restoring import Restoring
from attnscope.hf.seeing.tensors import arguments, at


@dataclass(frozen=True)
class Variant:
    """What is left of every block besides attention and norms."""

    title: str
    skip: bool
    mlp: bool
    mlp_skip: bool = True


VARIANTS = {
    "san": Variant("attention only", skip=False, mlp=False),
    "san+mlp": Variant("attention + MLP", skip=False, mlp=True),
    "san+skip": Variant("attention + skip", skip=True, mlp=False),
    "whole": Variant("whole model", skip=True, mlp=True),
}


@dataclass(frozen=True)
class _Edit:
    """What becomes of one write: multiplied with `keep`, less `state` / multiplier."""

    write: Place
    state: Place | None  # taken away from the write; None: nothing is
    multiplier: float
    keep: bool


@contextmanager
def cut(model: nn.Module, found: Anatomy, variant: Variant) -> Iterator[None]:
    """Inside the context every block of the model is the variant; outside it is itself again."""
    edits = [edit for stack in found.stacks for block in stack.blocks for edit in _edits(found, block, variant)]
    surgeon = _Surgeon(edits)
    with Restoring() as changes:
        changes.before(model, surgeon.begin, prepend=True)
        for path in surgeon.paths():
            module = model.get_submodule(path)
            changes.before(module, surgeon.took(path))
            changes.after(module, surgeon.gave(path))
        yield


def _edits(found: Anatomy, block: Block, variant: Variant) -> Iterator[_Edit]:
    writes = block.writes
    if not writes.separable:
        raise RefusalError(
            f"What attention and MLP write cannot be told apart in {block.path} of {found.model_class} (its stream is "
            "not a sum of what entered and what the two wrote), so its skips cannot be cut: choose another model; "
            "`scan` shows the attention and the streams of this one."
        )
    entered = Place(block.path, block.nth, "input", block.enters)
    attention = attention_writes(block)
    for identity in writes.identities:
        state = identity.before or entered
        for write in identity.writes:
            attends = write in attention
            if not attends and not variant.mlp:
                yield _Edit(write, None, identity.multiplier, keep=False)
            elif not (variant.skip if attends else variant.mlp_skip or writes.norm == "parallel"):
                yield _Edit(write, state, identity.multiplier, keep=True)


class _Surgeon:
    def __init__(self, edits: list[_Edit]) -> None:
        self.edits = {(edit.write.path, edit.write.nth): edit for edit in edits}
        self.states = {edit.state for edit in edits if edit.state is not None}
        self.begin()

    def begin(self, *ignored: Any) -> None:
        self.entered: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.read: dict[Place, Tensor] = {}

    def paths(self) -> list[str]:
        return sorted({place.path for place in self.states} | {path for path, _ in self.edits})

    def took(self, path: str) -> Callable[..., None]:
        wanted = [place for place in self.states if (place.path, place.side) == (path, "input")]

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nth = self.entered[path]
            self.entered[path] += 1
            for place in wanted:
                if place.nth == nth:
                    self.read[place] = arguments(args, kwargs)[place.slot]

        return hook

    def gave(self, path: str) -> Callable[..., Any]:
        wanted = [place for place in self.states if (place.path, place.side) == (path, "output")]

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            nth = self.left[path]
            self.left[path] += 1
            edit = self.edits.get((path, nth))
            if edit is not None:
                output = self._edited(edit, output)
            for place in wanted:
                if place.nth == nth:
                    self.read[place] = at(output, place.slot)
            return output

        return hook

    def _edited(self, edit: _Edit, output: Any) -> Any:
        write = at(output, edit.write.slot)
        if not edit.keep:
            new = torch.zeros_like(write)
        else:
            assert edit.state is not None
            new = write - self.read.pop(edit.state).reshape(write.shape) / edit.multiplier
        if isinstance(output, Tensor):
            return new
        slot = edit.write.slot
        return type(output)(new if index == slot else value for index, value in enumerate(output))
