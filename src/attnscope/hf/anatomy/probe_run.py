"""One forward pass on a probe batch that is watched from everywhere: module calls, torch functions, the registry.

The census, the dissection and the search of parameters each make one such run; they differ in what they note.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from attnscope.hf.anatomy.example import Batch, run
from attnscope.hf.seeing.fast_path import without_fast_path
from attnscope.hf.seeing.interface import watched_interface
from attnscope.hf.seeing.masks import MaskReader
from attnscope.hf.seeing.pieces import told_in_one_piece
from attnscope.hf.seeing.primitives import Seen, SoftmaxWatch
from attnscope.hf.seeing.restoring import Restoring
from attnscope.hf.seeing.sighting import Sighting


@runtime_checkable
class Watcher(Protocol):
    """What a probe run tells: every module call as it begins and ends, and every attention call."""

    @property
    def paths(self) -> Mapping[nn.Module, str]:
        """The modules whose calls are told, all of the model's."""

    @property
    def masks(self) -> MaskReader: ...

    def scope(self) -> tuple[int, ...]:
        """Numbers of the module calls that are under way, outermost first."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What it returns, if anything, is what the module is called with instead."""

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...

    def saw(self, call: Seen) -> None:
        """Attention by torch functions."""

    def saw_interface(self, module: nn.Module, sighting: Sighting) -> None:
        """Attention by a function of transformers' registry."""


def probe_run(
    model: nn.Module,
    batch: Batch,
    watcher: Watcher,
    *,
    fast_path: bool = True,
    also: tuple[AbstractContextManager[Any], ...] = (),
) -> SoftmaxWatch:
    """Run `model` once on `batch`, inside the contexts `also`, and leave nothing behind, after an exception neither.

    Returns the watch of torch functions, which knows in which scopes softmaxes were taken and what became of them.
    `fast_path` says whether the model has torch layers whose fused path must be avoided.
    """
    watch = SoftmaxWatch(watcher.saw, watcher.scope)
    with Restoring() as changes:
        changes.callback(watch.forget)
        for module in watcher.paths:
            changes.before(module, watcher.enter)
            changes.after(module, watcher.leave, kwargs=True)
        changes.enter_context(without_fast_path(fast_path))
        changes.enter_context(told_in_one_piece(model))
        changes.enter_context(
            watched_interface(watcher.paths.__contains__, watcher.masks, watcher.saw_interface, lambda module: True)
        )
        changes.enter_context(torch.no_grad())
        for context in also:
            changes.enter_context(context)
        changes.enter_context(watch)
        run(model, batch)
    return watch
