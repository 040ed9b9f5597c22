"""What a look records of real training steps, and the alarms of faults that are switched on between two looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnscope
from attnscope.commands.timeline.read import read_run
from attnscope.commands.watch.batch_capture import BatchCapture
from attnscope.commands.watch.look import Alarm, Look
from tests.commands.watch.training import batch, gpt2, llama, numbers_of

SWITCHED = 12


def trained(
    folder: Path,
    model: nn.Module,
    fault: Callable[[nn.Module, torch.optim.Optimizer], None] | None = None,
    *,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda one: one,
    steps: int = 18,
    rate: float = 1e-3,
) -> tuple[tuple[Look, ...], list[Alarm]]:
    """Train with a look at every step; the fault begins at step 13. Return the looks and alarms from then on."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with attnscope.watch(model, folder, every=1) as watch:
        for step in range(steps):
            if step == SWITCHED and fault is not None:
                fault(model, optimizer)
            one = change(batch(step)) if step >= SWITCHED else batch(step)
            loss = model(**one).loss
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)
            optimizer.zero_grad()
        alarms = [one for one in watch.alarms if one.severity != "note" and one.step > SWITCHED]
    return read_run(folder).looks, alarms


def test_looks_know_the_optimiser_and_the_batches(tmp_path: Path) -> None:
    looks, alarms = trained(tmp_path / "run", gpt2(dropout=0.0))
    assert not alarms
    states = [look.training for look in looks[1:]]
    assert [state.optimizer_steps for state in states if state] == list(range(1, 19))
    assert {(state.learning_rate, state.repeated, state.labels_same) for state in states if state} == {(1e-3, 0.0, 1.0)}
    # The norm of all gradients is at least that of the projections, which are a part of them.
    parts = [numbers_of(looks[-1], "gradient_norm", part) for part in ("query", "key", "value", "output")]
    last = states[-1]
    assert last is not None
    assert last.gradient_norm is not None
    assert last.gradient_norm > np.sqrt(sum((part**2).sum() for part in parts))
    assert looks[-1].training is not None
    assert looks[-1].training.mean_loss == looks[-1].loss


def mask_lost(model: Any, _: torch.optim.Optimizer) -> None:
    model.transformer.h[1].attn.is_causal = False


def frozen(model: Any, _: torch.optim.Optimizer) -> None:
    model.transformer.h[1].requires_grad_(False)


def faster(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] *= 10


def forgetful(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


@pytest.mark.parametrize(
    ("fault", "rule", "layers"),
    [
        (mask_lost, "sees_the_future", (1,)),
        (frozen, "frozen_block", (1,)),
        (faster, "learning_rate_jump", ()),
        (forgetful, "optimizer_reset", ()),
    ],
)
def test_a_fault_is_found_at_the_next_look(tmp_path: Path, fault: Any, rule: str, layers: tuple[int, ...]) -> None:
    _, alarms = trained(tmp_path / "run", gpt2(dropout=0.0), fault)
    (own,) = [alarm for alarm in alarms if alarm.rule == rule]
    assert (own.step, own.layers) == (SWITCHED + 1, layers)
    assert not [alarm for alarm in alarms if alarm.rule == "nonfinite"]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("repeated_data", lambda _: batch(0)),
        ("shifted_labels", lambda one: {**one, "labels": one["labels"].roll(-1, dims=1)}),
    ],
)
def test_a_fault_of_the_data_is_found(tmp_path: Path, rule: str, change: Any) -> None:
    _, alarms = trained(tmp_path / "run", gpt2(dropout=0.0), change=change)
    (own,) = [alarm for alarm in alarms if alarm.rule == rule]
    assert own.step <= SWITCHED + 2


def test_a_causal_model_with_shared_keys_has_no_influence_of_later_tokens(tmp_path: Path) -> None:
    looks, _ = trained(tmp_path / "run", llama(dropout=0.0), steps=2)
    for look in looks:
        assert numbers_of(look, "future_influence").max() < 1e-6
    assert numbers_of(looks[-1], "norm_gain").shape == (2,)
    assert numbers_of(looks[-1], "distinct_weights").min() > 0.95


def test_repeated_sequences_and_first_tokens_are_counted() -> None:
    capture = BatchCapture()
    first, second = torch.arange(24).view(2, 12) + 1, torch.arange(24).view(2, 12) + 30
    capture.add({"input_ids": first}, {})
    capture.add({"input_ids": second}, {})
    assert capture.summary()["repeated"] == 0.0
    capture.add({"input_ids": torch.stack([first[0], second[1].flip(0)])}, {})
    found = capture.summary()
    assert found["repeated"] == 0.5  # the same tokens in another order are another sequence
    assert found["usual_first_token"] == 0.5
    assert capture.summary() == {}


def test_padding_on_the_left_is_not_the_first_token() -> None:
    capture = BatchCapture()
    ids, mask = torch.tensor([[0, 0, 7, 8], [7, 5, 6, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    capture.add({"input_ids": ids, "attention_mask": mask}, {})
    assert capture.summary()["usual_first_token"] == 1.0


def test_the_hook_on_optimisers_is_removed(tmp_path: Path) -> None:
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    before = dict(_global_optimizer_pre_hooks)
    trained(tmp_path / "run", gpt2(), steps=1)
    assert dict(_global_optimizer_pre_hooks) == before
