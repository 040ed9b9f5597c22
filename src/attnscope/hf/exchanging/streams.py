"""What an attention module is given, kept for the part below it while the module runs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn

from attnscope.hf.anatomy.anatomy import Stack
from attnscope.hf.exchanging.part import part_of
from attnscope.hf.seeing.tensors import arguments, float_tensors


def watch_stream(changes: ExitStack, module: nn.Module, stack: Stack) -> None:
    """Before every call of the module its tokens are put where the part finds them; after it they are let go."""
    before = _keep_flipped if stack.sequence_first else _keep
    changes.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    changes.callback(module.register_forward_hook(_let_go, always_call=True).remove)


def _keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    part = part_of(module)
    if part is not None:
        fitting = (t for _, t in float_tensors(arguments(args, kwargs)) if t.ndim == 3)
        part.held["stream"] = next((t for t in fitting if t.shape[-1] == part.size.width), None)


def _keep_flipped(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _keep(module, args, kwargs)
    part = part_of(module)
    if part is not None and part.held["stream"] is not None:
        part.held["stream"] = part.held["stream"].transpose(0, 1)


def _let_go(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    part = part_of(module)
    if part is not None:
        part.held.pop("stream", None)
