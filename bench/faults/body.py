"""The parts of a real model that faults are planted in, found by its anatomy and not by names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site

GRADES = ("small", "medium", "large")


class NotApplicableError(Exception):
    """Raised by a fault that this model cannot have, such as a lost mask in a model without one."""


@dataclass
class Body:
    """A model to damage, with the place and size of the damage. Changes are undone by `restored`."""

    model: nn.Module
    found: Anatomy
    seed: int
    layer: int = -1  # set by `choose_block`
    head: int | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)
    _saved: dict[str, Tensor] = field(default_factory=dict)
    _undo: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.generator.manual_seed(self.seed)
        self.random = random.Random(self.seed)

    @property
    def grade(self) -> str:
        return GRADES[self.seed % len(GRADES)]

    def size(self, small: float, medium: float, large: float) -> float:
        """Return the size of this grade."""
        return (small, medium, large)[self.seed % len(GRADES)]

    @property
    def blocks(self) -> tuple[Block, ...]:
        blocks = self.found.stacks[-1].blocks
        if len({block.path for block in blocks}) < len(blocks):
            raise NotApplicableError("blocks share weights")
        return blocks

    def block(self, margin: int = 0) -> Block:
        """Choose a block once, at least `margin` before the last."""
        if margin >= len(self.blocks):
            raise NotApplicableError("too few blocks")
        if self.layer < 0:
            self.layer = self.random.randrange(len(self.blocks) - margin)
        return self.blocks[self.layer]

    @property
    def site(self) -> Site:
        """The self-attention of the chosen block."""
        block = self.block()
        return next(
            s for s in self.found.sites if s.site == "self" and s.layer == block.layer and s.stack == self.stack
        )

    @property
    def stack(self) -> str:
        return self.found.stacks[-1].name

    def module(self, path: str) -> nn.Module:
        return self.model.get_submodule(path)

    def weights(self, name: str) -> Tensor:
        """Return a parameter or buffer to change in place; it is restored later."""
        owner, _, last = name.rpartition(".")
        tensor: Tensor = getattr(self.module(owner), last).data
        self._saved.setdefault(name, tensor.clone())
        return tensor

    def projection(self, which: str) -> Tensor:
        """Return the query, key, value or output matrix of the chosen block, [in, out], as a view."""
        matrix = self.site.projections.matrices.get(which)
        if matrix is None:
            raise NotApplicableError(f"no {which} projection")
        self.weights(matrix.parameter)
        return matrix.of({matrix.parameter: self.model.get_parameter(matrix.parameter)})

    def columns(self, which: str, head: int) -> Tensor:
        """Return the columns of one head of a query, key or value projection, [in, dim], as a view."""
        columns = getattr(self.site.projections, which)
        whole = self.projection(which)
        start = columns.starts[head % len(columns.starts)]
        return whole[:, start : start + columns.dim]

    def linears(self, block: Block | None = None) -> list[str]:
        """Return the names of the weight matrices of a block, in the order of its modules."""
        path = (block or self.block()).path
        names = [n for n, p in self.model.named_parameters() if n.startswith(f"{path}.") and p.ndim == 2]
        if not names:
            raise NotApplicableError("no matrices in the block")
        return names

    def mlp_output(self) -> tuple[Tensor, int]:
        """Return the last matrix of the block's MLP, and the axis of its output channels."""
        name = self.linears()[-1]
        module = self.module(name.rpartition(".")[0])
        return self.weights(name), 0 if isinstance(module, nn.Linear) else 1

    def norms(self, block: Block | None = None) -> list[str]:
        """Return the names of the gains of a block's norms."""
        names = [f"{path}.weight" for path in (block or self.block()).writes.norms]
        known = {name for name, _ in self.model.named_parameters()}
        kept = [name for name in names if name in known]
        if not kept:
            raise NotApplicableError("no norms with gains")
        return kept

    def noise(self, like: Tensor) -> Tensor:
        """Return normal noise with the spread of a tensor."""
        return torch.randn(like.shape, generator=self.generator).to(like.dtype) * like.std()

    def attention_modules(self, everywhere: bool = False) -> list[nn.Module]:
        layers = {block.layer for block in self.blocks} if everywhere else {self.block().layer}
        sites = [s for s in self.found.sites if s.site == "self" and s.stack == self.stack and s.layer in layers]
        return [self.module(site.path) for site in sites]

    def hook(self, module: nn.Module, before: Callable[..., Any]) -> None:
        handle = module.register_forward_pre_hook(before, with_kwargs=True)
        self._undo.callback(handle.remove)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute; it is restored later."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.callback(setattr, owner, name, before)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Undo all changes on exit."""
        try:
            yield
        finally:
            self._undo.close()
            with torch.no_grad():
                for name, value in self._saved.items():
                    owner, _, last = name.rpartition(".")
                    getattr(self.module(owner), last).data.copy_(value)
