"""Train small language models under a watch: some are made unstable in known ways, some are healthy.

    run = failing_run(WAYS["rate too high"], Size(), seed)
    run["losses"], run["looks"]

rate too high    the learning rate rises linearly until training is unstable; queries and keys have no norm, so logits
                 grow until attention is one-hot (arXiv:2309.14322, arXiv:2303.06296)
no warm-up       post-norm, full rate from the first step: tokens become alike and gradients of queries and keys vanish
                 (arXiv:2002.04745, arXiv:2206.03126); with a warm-up the same model learns
float16          the learning rate of the MLPs doubles every 20 steps: they write a spike that grows until it exceeds
                 65,504 and float16 overflows (arXiv:2402.17762)
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from attnscope.commands.timeline.read import read_run
from attnscope.commands.watch.alarm_judge import muted_log
from attnscope.commands.watch.run import watch
from attnscope.data.read import read
from attnscope.papers.models.nano import Config, Nano

RISEN = 1.2  # a loss 20% above its lowest value so far shows a failure


@dataclass(frozen=True)
class Size:
    """Sizes that all runs share."""

    layers: int = 4
    width: int = 48
    heads: int = 4
    tokens: int = 32
    sequences: int = 16
    steps: int = 450
    every: int = 10


@dataclass(frozen=True)
class Way:
    """How a run is trained. `rate(step)` is the learning rate, which is multiplied by `mlp(step)` for MLPs."""

    name: str
    rate: Callable[[int], float]
    norm: Literal["pre", "post"] = "pre"
    mlp: Callable[[int], float] = lambda _: 1.0
    half: bool = False
    deeper: int = 0


def constant(rate: float, warmup: int) -> Callable[[int], float]:
    return lambda step: rate * min(1.0, (step + 1) / warmup)


WAYS = {
    "rate too high": Way("rate too high", constant(0.2, 400)),
    "no warm-up": Way("no warm-up", constant(3e-3, 1), norm="post", deeper=2),
    "float16": Way("float16", constant(3e-3, 50), mlp=lambda step: 20.0 * 2.0 ** (step / 20), half=True),
}
HEALTHY = {
    "healthy": Way("healthy", constant(3e-3, 50)),
    "healthy, post-norm": Way("healthy, post-norm", constant(3e-3, 200), norm="post", deeper=2),
}


@cache
def characters() -> tuple[Int[Tensor, " character"], int]:
    """Return the embedded book as character ids, and the number of different characters."""
    text = "".join(read().documents)
    known = {letter: number for number, letter in enumerate(sorted(set(text)))}
    return torch.tensor([known[letter] for letter in text]), len(known)


def failing_run(
    way: Way, size: Size, seed: int, *, folder: Path | None = None, advance: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """Train, and return the loss of every step and all looks as JSON. A run ends when its loss shows a failure."""
    data, vocabulary = characters()
    sizes: dict[str, Any] = {"width": size.width, "heads": size.heads, "layers": size.layers + way.deeper}
    sizes |= {"vocab_size": vocabulary, "mlp": 4 * size.width, "max_tokens": size.tokens}
    model = Nano(Config(**sizes, norm=way.norm, causal=True), seed).train()
    optimiser = _optimiser(model)
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "run" if folder is None else folder
        with muted_log(), watch(model, path, every=size.every) as watching:
            for step in range(size.steps):
                for group in optimiser.param_groups:
                    group["lr"] = way.rate(step) * (way.mlp(step) if group["mlp"] else 1.0)
                loss = _loss(model, data, size, way, seed * 1_000_003 + step)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                losses.append(loss.item())
                watching.step(loss=loss)
                advance(step + 1)
                if failure_step({"losses": losses}) is not None:
                    break
        looks = [look.to_json() for look in read_run(path).looks]
    return {"way": way.name, "seed": seed, "losses": losses, "looks": looks}


def _optimiser(model: nn.Module) -> torch.optim.Optimizer:
    mlp = [p for name, p in model.named_parameters() if ".mlp." in name]
    rest = [p for name, p in model.named_parameters() if ".mlp." not in name]
    groups = [{"params": rest, "mlp": False}, {"params": mlp, "mlp": True}]
    return torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.99), weight_decay=0.0)


def _loss(model: nn.Module, data: Tensor, size: Size, way: Way, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(data) - size.tokens - 1, (size.sequences,), generator=rng)
    ids = data[starts[:, None] + torch.arange(size.tokens + 1)]
    with torch.autocast("cpu", torch.float16, enabled=way.half):
        logits = model(input_ids=ids[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def failure_step(run: Mapping[str, Any], control: Mapping[str, Any] | None = None) -> int | None:
    """Return the first step at which the loss is NaN or 20% above its lowest value so far, or None.

    If there is no such step, return the first at which it is 20% above the lowest loss that `control` had by then.
    """
    lowest = math.inf
    for step, loss in enumerate(run["losses"], start=1):
        if loss is None or not math.isfinite(loss) or loss > RISEN * lowest:  # JSON stores NaN as null
            return step
        lowest = min(lowest, loss)
    lowest = math.inf
    for step, (loss, other) in enumerate(zip(run["losses"], control["losses"] if control else (), strict=False), 1):
        lowest = min(lowest, other)
        if loss > RISEN * lowest:
            return step
    return None


def first_alarm(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first alarm of severity warning or more."""
    alarms = (alarm for look in run["looks"] for alarm in look["alarms"])
    return next((alarm for alarm in alarms if not alarm["ended"] and alarm["severity"] != "note"), None)
