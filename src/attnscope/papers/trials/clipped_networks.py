"""Errors of clipping heads: of one head, of hand-built heads, of heads in place of ReLU units, and of trained heads.

From arXiv:2504.15956; the heads are in `papers/models/clipping.py`.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.treat.train import Recipe, train
from attnscope.papers.models.clipping import ClippingHeads, attention_network, error_bound, interpolating

EXACT = torch.float64
LOW, HIGH = -5.0, 5.0


def one_head(steps: int, beta: float) -> ClippingHeads:
    """Return a head that computes clip(x, -5, 5)."""
    ends = torch.tensor([[LOW], [HIGH]], dtype=EXACT)
    return ClippingHeads(torch.ones(1, 1, dtype=EXACT), torch.zeros(1, dtype=EXACT), ends[0], ends[1], steps, beta)


@torch.no_grad()
def clipping_error(steps: int, beta: float, points: int) -> dict[str, float]:
    """Return the largest error of one head on [-8, 8], over a grid and over the points where theory expects it.

    A sharp head is worst at a distance of ln(4 beta step) / (2 beta) from the midpoint between two anchors (at the
    midpoint itself both have half the weight and the error is 0). A soft head is worst at the ends of its range, where
    anchors on one side are missing.
    """
    head, step = one_head(steps, beta), (HIGH - LOW) / steps
    middles = LOW + (torch.arange(steps, dtype=EXACT) + 0.5) * step
    beside = min(step / 2, math.log(max(4 * beta * step, math.e)) / (2 * beta))
    grid = torch.linspace(-8, 8, points, dtype=EXACT)
    x = torch.cat([grid, middles - beside, middles + beside, torch.tensor([LOW, HIGH], dtype=EXACT)])[None, :, None]
    wrong = (head(x) - x.clamp(LOW, HIGH)).abs()
    inside = wrong[x.abs() <= HIGH - 1]
    scores, y = head.logits(x)[0, 0], x[0]
    squares = -((y - head.anchors) ** 2) / step
    squares = squares - squares[:, :1]
    # `scores` and `squares` are sums of a few terms of at most `size`, each rounded in its last places.
    size = float(scores.abs().max() + ((y - head.anchors) ** 2).max() / step)
    return {
        "error": float(wrong.max()),
        "inside": float(inside.max()),
        "bound": float(head.half_step[0]),
        "identity": float((scores - squares).abs().max()) / size,
    }


def wave(x: Tensor) -> Tensor:
    """Compute a function of one variable that a few straight lines do not fit."""
    return torch.sin(2 * x) * torch.exp(-x * x / 8)


def surface(x: Float[Tensor, "*any 2"]) -> Float[Tensor, "*any 1"]:
    """Compute a function of two variables with a hill, a valley and a slope."""
    first, second = x[..., :1], x[..., 1:]
    return torch.sin(2 * first) * torch.cos(1.5 * second) + 0.3 * first * second


@torch.no_grad()
def wave_error(steps: int, knots: int, beta: float) -> dict[str, float]:
    """Return the errors of hand-built heads that interpolate the wave between knots."""
    at = torch.linspace(-3, 3, knots, dtype=EXACT)
    linears = interpolating(at, wave(at))
    x = torch.linspace(-3, 3, 4001, dtype=EXACT)[None, :, None]
    network = attention_network(linears, x, steps, beta)
    lines, heads = linears[1](linears[0](x).relu()), network(x)
    return {
        "error": float((heads - wave(x)).abs().max()),
        "beside_lines": float((heads - lines).abs().max()),
        "bound": float(error_bound(network, linears)),
        "lines": float((lines - wave(x)).abs().max()),
    }


def relu_network(widths: Sequence[int]) -> nn.Sequential:
    """Return a ReLU network in float64 with layers of these widths; `linears_of` returns its linear maps."""
    maps: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        maps += [nn.Linear(before, after, dtype=EXACT), nn.ReLU()]
    return nn.Sequential(*maps[:-1])


def linears_of(network: nn.Sequential) -> list[nn.Linear]:
    return [part for part in network if isinstance(part, nn.Linear)]


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def uniform(points: int, rng: torch.Generator) -> Float[Tensor, "1 point 2"]:
    return 4 * torch.rand(1, points, 2, generator=rng, dtype=EXACT) - 2


def surface_loss(model: nn.Module, rng: torch.Generator) -> Tensor:
    x = uniform(256, rng)
    return F.mse_loss(model(x), surface(x))


def replaced_by_heads(
    widths: tuple[int, ...], steps: Sequence[int], training: int, seed: int
) -> list[dict[str, float | int]]:
    """Train a ReLU network on the surface, then compare it with its conversion to heads."""
    network = seeded(lambda: relu_network(widths), seed)
    assert isinstance(network, nn.Sequential)
    train(network, surface_loss, Recipe(training, 1e-2, decay=0.0), seed=seed)
    x = uniform(2000, torch.Generator().manual_seed(seed + 1))
    linears = linears_of(network)
    rows = []
    with torch.no_grad():
        plain = network(x)
        for count in steps:
            heads = attention_network(linears, x, count, beta=50.0)
            rows.append(
                {
                    "steps": count,
                    "seed": seed,
                    "beside_network": float((heads(x) - plain).abs().max()),
                    "bound": float(error_bound(heads, linears).max()),
                    "error": float(F.mse_loss(heads(x), surface(x))),
                    "network": float(F.mse_loss(plain, surface(x))),
                }
            )
    return rows


def digits_at_hand() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def digits() -> tuple[Float[Tensor, "image pixel"], Tensor]:
    """Return scikit-learn's 1,797 handwritten digits, 8 x 8 pixels with values in [0, 1], and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.data / 16, dtype=EXACT), torch.tensor(data.target)


def digits_by_heads(
    hidden: tuple[int, ...], steps: Sequence[int], training: int, seed: int
) -> list[dict[str, float | int]]:
    """Train a classifier of digits, then compare it with its conversion to heads on a held-out fifth of the images."""
    images, labels = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    held, used = order[: len(order) // 5], order[len(order) // 5 :]

    def loss(model: nn.Module, rng: torch.Generator) -> Tensor:
        some = used[torch.randint(0, len(used), (128,), generator=rng)]
        return F.cross_entropy(model(images[some]), labels[some])

    network = seeded(lambda: relu_network((64, *hidden, 10)), seed)
    assert isinstance(network, nn.Sequential)
    train(network, loss, Recipe(training, 5e-3), seed=seed)
    rows = []
    with torch.no_grad():
        plain = network(images[held]).argmax(-1)
        for count in steps:
            # Heads clip at the largest values on training images; held-out images can exceed them.
            heads = attention_network(linears_of(network), images[used][None], count, beta=1.0)
            answers = heads(images[held][None])[0].argmax(-1)
            rows.append(
                {
                    "steps": count,
                    "seed": seed,
                    "same": float((answers == plain).double().mean()),
                    "heads_right": float((answers == labels[held]).double().mean()),
                    "network_right": float((plain == labels[held]).double().mean()),
                }
            )
    return rows


class TrainedHeads(nn.Module):
    """Heads that attend to `anchors` trained keys and values each; the answer is the sum of the heads."""

    def __init__(self, width: int, heads: int, anchors: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(heads, anchors, width + 1, dtype=EXACT))
        self.values = nn.Parameter(torch.randn(heads, anchors, 1, dtype=EXACT) / math.sqrt(heads))

    def forward(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token 1"]:
        query = torch.cat([x, -torch.ones_like(x[..., :1])], dim=-1)[:, None]
        mixed = F.scaled_dot_product_attention(
            query.expand(-1, len(self.keys), -1, -1), self.keys[None], self.values[None], scale=1.0
        )
        return mixed.sum(1)


def learned(heads: int, anchors: int, training: int, seed: int) -> dict[str, float | int]:
    """Return the relative mean squared error on the surface of trained heads, and of a ReLU network of the same size.

    A key, its bias and its value have width + 2 parameters, like a ReLU unit, so the network has heads x anchors units.
    """
    x = uniform(2000, torch.Generator().manual_seed(1000 + seed))
    spread = float(surface(x).var())
    models: dict[str, Callable[[], nn.Module]] = {
        "heads": lambda: TrainedHeads(2, heads, anchors),
        "units": lambda: relu_network((2, heads * anchors, 1)),
    }
    row: dict[str, float | int] = {"heads_number": heads, "seed": seed}
    for name, make in models.items():
        model = seeded(make, seed)
        train(model, surface_loss, Recipe(training, 1e-2, decay=0.0), seed=seed)
        with torch.no_grad():
            row[name] = float(F.mse_loss(model(x), surface(x))) / spread
    return row
