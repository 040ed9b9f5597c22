"""Read the learning rate, the gradient norm and the step count from the optimiser that trains the model.

torch calls a hook before every step of every optimiser. The hook changes nothing. It reads at steps with a look, from
optimisers that hold parameters of the model. So neither a loop nor a Trainer has to pass its optimiser.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from attnscope.hf.intercepting.restoring import Restoring


class OptimizerCapture:
    """What the last optimiser step of the model used: filled by the hook of `install`, emptied by `forget`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.learning_rate: float | None = None
        self.gradient_norm: float | None = None
        self.steps: int | None = None

    def install(self, changes: Restoring, model: nn.Module, due: Callable[[], bool]) -> None:
        """Hook all optimisers until `changes` is closed; `due` says whether the coming step has a look."""
        mine = {id(parameter) for parameter in model.parameters()}

        def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not torch.compiler.is_compiling() and due():
                parameters = [p for group in optimizer.param_groups for p in group["params"]]
                if any(id(p) in mine for p in parameters):
                    self._read(optimizer, parameters)

        changes.callback(register_optimizer_step_pre_hook(before).remove)

    @torch.no_grad()
    def _read(self, optimizer: Optimizer, parameters: list[Tensor]) -> None:
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        self.learning_rate = max([*rates, *([] if self.learning_rate is None else [self.learning_rate])], default=None)
        gradients = [p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse]
        if gradients:
            own = float(torch.nn.utils.get_total_norm(gradients))
            whole = math.hypot(own, self.gradient_norm or 0.0)  # several optimisers may share the model
            self.gradient_norm = whole if math.isfinite(whole) else None
        states = [optimizer.state.get(p) for p in parameters if p.grad is not None]
        counts = [_count(state.get("step")) for state in states if state]
        known = [count for count in counts if count is not None]
        # The hook runs before the step. Before the first one no parameter has a state.
        self.steps = max(known) + 1 if known else None if counts else 1


def _count(step: Any) -> int | None:
    if isinstance(step, Tensor):
        return int(step) if step.device.type == "cpu" else None
    return step if isinstance(step, int) else None
