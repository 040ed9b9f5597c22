"""Every change through `Restoring` is undone, also after an exception."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from attnscope.hf.anatomy.call_log import log_calls
from attnscope.hf.intercepting.restoring import Restoring
from tests.specimens import tiny_llama


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind = "sparse"
        self.first = nn.Linear(3, 3)
        self.second: nn.Module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_every_kind_of_change_is_undone_after_an_exception() -> None:
    model = _Named()
    model.second.eval()
    vars(model.first)["forward"] = own = lambda x: x
    modes = [module.training for module in model.modules()]
    children = dict(model._modules)
    with suppress(KeyError), Restoring() as changes:
        changes.parts(model)
        changes.evaluation(model)
        changes.before(model.first, lambda *given: None)
        changes.after(model.first, lambda *given: None)
        changes.forward(model.first, lambda x: x + 1)
        changes.forward(model.second, lambda x: x + 1)
        assert not any(module.training for module in model.modules())
        assert torch.equal(model(torch.zeros(3)), torch.full((3,), 2.0))
        model.kind, model.second = "full", nn.Identity()
        raise KeyError
    assert [module.training for module in model.modules()] == modes
    assert model._modules == children
    assert model.kind == "sparse"
    assert vars(model.first)["forward"] is own
    assert "forward" not in vars(model.second)
    assert _hooks(model) == 0


def test_hooks_get_kwargs_and_always_hooks_run_after_a_failure() -> None:
    model = nn.Linear(2, 2)
    seen: list[tuple[Any, ...]] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(("before", len(args), sorted(kwargs)))

    with Restoring() as changes:
        changes.before(model, before)
        changes.after(model, lambda *given: seen.append(("after", len(given))), kwargs=True)
        changes.after(model, lambda *given: seen.append(("always", len(given))), always=True)
        model(input=torch.zeros(2))
        with pytest.raises(RuntimeError):
            model(torch.zeros(5))
    assert seen == [
        ("before", 0, ["input"]),
        ("after", 4),
        ("always", 3),
        ("before", 1, []),
        ("always", 3),
    ]


def test_a_probe_run_that_fails_leaves_the_model_and_torch_as_they_were() -> None:
    model = tiny_llama()
    broken = model.get_submodule("model.layers.1.mlp")
    fast = torch.backends.mha.get_fastpath_enabled()

    def fail(*given: Any) -> None:
        raise ValueError("in the middle of a layer")

    handle = broken.register_forward_hook(fail)
    with pytest.raises(ValueError, match="middle of a layer"):
        log_calls(model, {"input_ids": torch.zeros(1, 5, dtype=torch.long)})
    handle.remove()
    assert _hooks(model) == 0
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert torch.is_grad_enabled()
