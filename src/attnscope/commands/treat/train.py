"""Train small models with AdamW, a linear warm-up, a cosine decay to zero, and checkpoints.

    recipe = Recipe(steps=2000, rate=2e-3)
    losses = train(model, loss, recipe, seed=0, kept=Path("state"), advance=advance)

`loss(model, rng)` draws its own batch from `rng`, a generator that only depends on the seed and the step. So no random
state is saved, and a resumed run gives the same weights as an unbroken one, bit for bit. A checkpoint is two files,
numbers as safetensors and the plan as JSON. `advance` is called between steps; if it raises (Ctrl-C), the last whole
step is saved.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.core.progress import Advance, silent, uninterrupted

Loss = Callable[[nn.Module, torch.Generator], Tensor]
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW remembers of a parameter
EVERY_SECONDS = 20.0
SAVING_COSTS = 20.0  # between saves, wait at least this many times as long as the last save took


@dataclass(frozen=True)
class Recipe:
    """Settings of training. `warmup` is a share of the steps, `clip` the largest norm of the gradient."""

    steps: int
    rate: float
    warmup: float = 0.05
    decay: float = 0.01
    beta2: float = 0.99
    clip: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0:
            raise RefusalError(
                f"Training cannot have {self.steps} steps and a rate of {self.rate}: give numbers above 0."
            )

    def rate_at(self, step: int) -> float:
        """Return the rate of a step: a linear rise that starts above zero, then half a cosine."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.rate * (step + 1) / rising
        return self.rate * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, self.steps - rising)))


def train(
    model: nn.Module,
    loss: Loss,
    recipe: Recipe,
    *,
    seed: int = 0,
    kept: Path | None = None,
    plan: Mapping[str, Any] | None = None,
    trained: Mapping[str, nn.Parameter] | None = None,
    beside: Mapping[str, Tensor] | None = None,
    where: Callable[[nn.Module, torch.Generator], str] | None = None,
    advance: Advance = silent,
    stage: str = "training",
) -> tuple[float, ...]:
    """Train in place and return the loss of every step. With `kept`, resume from a checkpoint there.

    `trained` has the parameters to train and to save, by name; default: all. `beside` has tensors that forward passes
    change in place; they are saved too. `plan` has everything else that determines the numbers (the data, for example):
    a checkpoint of another plan is refused. `where(model, rng)` returns the module where a loss stopped being finite.
    """
    chosen = dict(model.named_parameters()) if trained is None else dict(trained)
    optimiser = torch.optim.AdamW(chosen.values(), lr=recipe.rate, betas=(0.9, recipe.beta2), weight_decay=recipe.decay)
    everything = {"recipe": asdict(recipe), "seed": seed, **(plan or {})}
    mine = None if trained is None else chosen
    checkpoint = None if kept is None else Checkpoint(kept, everything, mine, dict(beside or {}))
    losses = [] if checkpoint is None else checkpoint.restore(model, optimiser)
    saved_at, saving = time.monotonic(), 0.0
    good: list[Tensor] = []  # the weights before the last update, which gave a finite loss
    model.train()
    for step in range(len(losses), recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate_at(step)
        value = loss(model, torch.Generator().manual_seed(_step_seed(seed, step)))
        broken = "" if math.isfinite(value.item()) else "loss"
        if not broken:
            optimiser.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]
            broken = "" if bool(nn.utils.clip_grad_norm_(chosen.values(), recipe.clip).isfinite()) else "gradient"
        if broken:
            module = "" if where is None else where(model, torch.Generator().manual_seed(_step_seed(seed, step)))
            if broken == "loss" and good:  # the last update broke it
                with torch.no_grad():
                    for parameter, earlier in zip(chosen.values(), good, strict=True):
                        parameter.copy_(earlier)
                losses.pop()
            raise RefusalError(
                f"The {broken} is not a number in step {step + 1}{module}: train with a smaller rate."
                + _save_good(checkpoint, model, optimiser, losses)
            )
        good = [parameter.detach().clone() for parameter in chosen.values()]
        optimiser.step()
        losses.append(value.item())
        try:
            advance(stage, step + 1, recipe.steps)
        except BaseException:
            if checkpoint is not None:
                checkpoint.save(model, optimiser, losses)
            raise
        if checkpoint is not None and time.monotonic() - saved_at > max(EVERY_SECONDS, SAVING_COSTS * saving):
            begun = time.monotonic()
            checkpoint.save(model, optimiser, losses)
            saved_at = time.monotonic()
            saving = saved_at - begun
    if checkpoint is not None:
        checkpoint.save(model, optimiser, losses)
    model.eval()
    return tuple(losses)


def _save_good(
    checkpoint: Checkpoint | None, model: nn.Module, optimiser: torch.optim.Optimizer, losses: list[float]
) -> str:
    """Save the last weights with a finite loss, if there is a checkpoint, and return a sentence about it."""
    if checkpoint is None or not losses:
        return ""
    checkpoint.save(model, optimiser, losses)
    return f" The weights after step {len(losses)}, the last good ones, are in {checkpoint.numbers}."


def _step_seed(seed: int, step: int) -> int:
    """Return a seed that differs for every seed and step (below 2^31)."""
    return (seed << 31) + step


@dataclass(frozen=True)
class Checkpoint:
    """Weights, moments and losses in `kept.safetensors`, the plan in `kept.json`.

    A checkpoint of another plan is refused. The number of steps is the number of losses, so the two files cannot
    contradict each other.
    """

    kept: Path
    plan: dict[str, Any]
    trained: dict[str, nn.Parameter] | None = None  # the weights to save; None: all of the model
    beside: dict[str, Tensor] = field(default_factory=dict)  # saved too, but not trained

    @property
    def numbers(self) -> Path:
        return self.kept.with_name(self.kept.name + ".safetensors")

    @property
    def words(self) -> Path:
        return self.kept.with_name(self.kept.name + ".json")

    @uninterrupted()  # a second Ctrl-C must not interrupt it
    def save(self, model: nn.Module, optimiser: torch.optim.Optimizer, losses: list[float]) -> None:
        from safetensors.torch import save

        weights = model.state_dict() if self.trained is None else self.trained
        named = {name: p.detach().contiguous() for name, p in weights.items()}
        for name, parameter in (dict(model.named_parameters()) if self.trained is None else self.trained).items():
            for moment, value in optimiser.state[parameter].items():
                named[f"optimiser/{moment}/{name}"] = value.detach().contiguous()
        named |= {f"beside/{name}": tensor.detach().clone() for name, tensor in self.beside.items()}
        named["losses"] = torch.tensor(losses, dtype=torch.float64)
        write_atomically(self.numbers, save(named), make_folder=True)
        write_atomically(self.words, json.dumps({"plan": self.plan}, allow_nan=False).encode())

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> list[float]:
        """Load the checkpoint, if there is one, and return the losses so far."""
        if not self.numbers.exists() or not self.words.exists():
            return []
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            plan = json.loads(self.words.read_text(encoding="utf-8"))["plan"]
            named = load(self.numbers.read_bytes())
            losses: list[float] = named.pop("losses").double().flatten().tolist()
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            raise RefusalError(
                f"{self.numbers} cannot be read ({error!s:.99}): start again without resuming."
            ) from error
        if plan != self.plan:
            raise RefusalError(
                f"{self.numbers} is of another training run: start again without resuming, or choose another folder."
            )
        moments = {name: named.pop(name) for name in list(named) if name.startswith("optimiser/")}
        try:
            kept_beside = {name: named.pop(f"beside/{name}") for name in self.beside}
            self._load(model, named)
            for name, tensor in self.beside.items():
                tensor.copy_(kept_beside[name])
            states = self._moments(model, moments)
        except (RuntimeError, KeyError, ValueError, AttributeError) as error:
            raise RefusalError(
                f"{self.numbers} is of another model: start again without resuming, or choose another folder."
            ) from error
        for parameter, state in states:
            optimiser.state[parameter].update(state)
        return losses

    def _moments(self, model: nn.Module, stored: Mapping[str, Tensor]) -> list[tuple[nn.Parameter, dict[str, Tensor]]]:
        """Return what the optimiser remembers of each parameter. Raise an error if it is not all that AdamW needs."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for full, value in stored.items():
            _, moment, name = full.split("/", 2)
            by_name.setdefault(name, {})[moment] = value
        states = []
        for name, state in by_name.items():
            parameter = model.get_parameter(name) if self.trained is None else self.trained[name]
            shapes = {moment: torch.Size() if moment == "step" else parameter.shape for moment in _MOMENTS}
            fits = {moment: value.shape for moment, value in state.items()} == shapes
            if not fits or not all(map(torch.is_floating_point, state.values())) or not state["step"] >= 0:
                raise ValueError(f"other moments of {name}")
            states.append((parameter, state))
        return states

    @torch.no_grad()
    def _load(self, model: nn.Module, named: Mapping[str, Tensor]) -> None:
        if self.trained is None:
            model.load_state_dict(named)
            return
        if named.keys() != self.trained.keys():
            raise KeyError("other parameters")
        for name, value in named.items():
            self.trained[name].copy_(value)
