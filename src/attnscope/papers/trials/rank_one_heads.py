"""Hard heads of rank 1 that vote on which of two points is nearer, and the best weights for their votes (2407.16153).

Two orthonormal points x_1, x_2 in R^d and a query y, all in random directions. A head (u, w) of rank 1 takes the point
with the larger (u.y)(w.x_i): with z = (x_1 - x_2)/sqrt(2), a unit vector, it votes sign(u.y) sign(w.z); the truth is
sign(y.z). For a random direction E[sign(u.y) sign(u'.y)] = (2/pi) arcsin(u.u'), and y and z are independent:

    two heads agree with probability            C = 1/2 + (2/pi^2) arcsin(u.u') arcsin(w.w')
    a head is right with probability            b = 1/2 + (1/pi) E_z[sign(w.z) arcsin(u.z)]

In the plane of u and w let z be rho (cos, sin) of a uniform angle, rho^2 ~ Beta(1, d/2 - 1), and u.w = sin(alpha).
sign(w.z) leaves half a turn, on most of which arcsin(rho cos psi) is odd about its middle and cancels:

    E_z[sign(w.z) arcsin(u.z)] = E_rho (2/pi) integral_0^alpha arcsin(rho cos psi) d psi.

What heads choose is a point, and points are orthonormal, so <choice, choice'> is 1 where they agree and 0 where not:
the squared error of sum_i a_i choice_i is 1 - 2 a.b + a.C a, least at C a = b, where it is 1 - b.C^-1 b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import roots_jacobi, roots_legendre
from torch import Tensor

from attnscope.matrix.plain_attention import softmax_pattern
from attnscope.matrix.visibility import mix
from attnscope.measures.head_contribution import head_contribution
from attnscope.papers.models.nano import Block, Nano
from attnscope.papers.models.tasks import Task
from attnscope.variants.compressed import compressed
from attnscope.variants.compressed import pattern as compressed_pattern
from attnscope.variants.local import local
from attnscope.variants.local import pattern as local_pattern
from attnscope.variants.mixed_heads import MULTIFORMER, mixed_heads

Units = Float[Tensor, "head width"]
EXACT = torch.float64
NODES = 64


def random_units(heads: int, width: int, rng: torch.Generator) -> Units:
    return torch.nn.functional.normalize(torch.randn(heads, width, generator=rng, dtype=EXACT), dim=-1)


def agreement(u: Units, w: Units) -> Float[Tensor, "head head"]:
    """C: with what probability two heads choose the same point."""
    return 0.5 + (2 / math.pi**2) * _arcsin(u @ u.T) * _arcsin(w @ w.T)


def right(u: Units, w: Units) -> Float[Tensor, " head"]:
    """b: with what probability a head chooses the nearer point, by Gauss quadrature in both variables."""
    width = u.shape[-1]
    alpha = _arcsin((u * w).sum(-1)).numpy()
    if width == 2:
        rho, weight = np.ones(1), np.ones(1)  # the plane of u and w is all there is
    else:
        # t = rho^2 has density (d/2 - 1)(1 - t)^(d/2 - 2) on [0, 1]: Jacobi's weight on [-1, 1].
        node, weight = roots_jacobi(NODES, width / 2 - 2, 0.0)
        rho, weight = np.sqrt((node + 1) / 2), weight / weight.sum()
    place, step = roots_legendre(NODES)
    psi = alpha[:, None] * (place + 1) / 2
    inner = np.arcsin(np.clip(rho * np.cos(psi)[..., None], -1, 1))  # [head, psi, rho]
    integral = (inner @ weight) @ step * alpha / 2
    return torch.from_numpy(0.5 + (1 / math.pi) * (2 / math.pi) * integral)


def best_error(u: Units, w: Units) -> float:
    """1 - b.C^-1 b: what the best weighted sum of these heads gets wrong, in mean square."""
    b = right(u, w)
    # C is an average of outer products of what heads choose, so it has no negative eigenvalue; equal heads make it
    # singular, and least squares takes the shortest of the solutions.
    weights = torch.linalg.lstsq(agreement(u, w), b[:, None], driver="gelsd").solution[:, 0]
    return float(1 - b @ weights)


def best_errors(widths: tuple[int, ...], heads: tuple[int, ...], seed: int) -> list[dict[str, float | int]]:
    """Random heads, the first few of the same draw for every number."""
    rows: list[dict[str, float | int]] = []
    for width in widths:
        rng = torch.Generator().manual_seed(1000 * seed + width)
        u, w = random_units(max(heads), width, rng), random_units(max(heads), width, rng)
        rows += [
            {"width": width, "heads": count, "error": best_error(u[:count], w[:count]), "seed": seed} for count in heads
        ]
    return rows


def votes(u: Units, w: Units, draws: int, rng: torch.Generator) -> tuple[Float[Tensor, "draw head"], Tensor]:
    """What each head votes in `draws` random triples of a query and two points, and the truth: +1 or -1."""
    width = u.shape[-1]
    y = torch.randn(draws, width, generator=rng, dtype=EXACT)
    points = torch.randn(draws, width, 2, generator=rng, dtype=EXACT)
    first, second = torch.linalg.qr(points)[0].unbind(-1)
    # QR leaves the sign of a column to the library; a random one makes directions uniform whatever it did.
    signs = torch.randint(0, 2, (2, draws, 1), generator=rng) * 2.0 - 1
    z = first * signs[0] - second * signs[1]
    return ((y @ u.T) * (z @ w.T)).sign(), (y * z).sum(-1).sign()


def formula_against_draws(heads: int, width: int, draws: int, seed: int) -> dict[str, float | int]:
    """Largest difference of C and b from shares counted in random draws, and what chance alone gives.

    Heads come in families u_t = cos t u + sin t v, so that products from 0 to 1 are met; a share of N draws has a
    standard deviation of at most 1 / (2 sqrt N), and the largest of M of them stays under sqrt(2 ln(2M)) of these on
    the average.
    """
    rng = torch.Generator().manual_seed(seed)
    turn = torch.linspace(0, math.pi / 2, heads, dtype=EXACT)[:, None]
    u, v = random_units(1, width, rng), random_units(1, width, rng)
    v = torch.nn.functional.normalize(v - (v @ u.T) * u, dim=-1)
    family = turn.cos() * u + turn.sin() * v
    other = (0.6 * turn).cos() * u - (0.6 * turn).sin() * v
    vote, truth = votes(family, other, draws, rng)
    same = 0.5 + 0.5 * (vote.T @ vote) / draws
    correct = 0.5 + 0.5 * (vote * truth[:, None]).mean(0)
    tested = heads * (heads + 1) // 2
    return {
        "seed": seed,
        "agreement": float((same - agreement(family, other)).abs().max()),
        "right": float((correct - right(family, other)).abs().max()),
        "chance": math.sqrt(2 * math.log(2 * tested)) / (2 * math.sqrt(draws)),
    }


def _arcsin(products: Tensor) -> Tensor:
    """Products of unit vectors round past 1."""
    return products.clamp(-1, 1).arcsin()


# Heads of different kinds in one layer (Multiformer, arXiv:2205.07100): what they are, and who does the work.
#
# The task is made like speech: few symbols, each held for several noisy frames, so that neighbours say the same again.
# Every frame is asked how many segments of its sequence carry its symbol (one, two, or more): telling the symbol takes
# near frames, counting takes far ones.
#
# Head contribution, section 5 of the paper: c_h(t) = ||z_h(t) W_O^h||_1 over its sum over heads, the median over
# tokens, then over sequences. Evenness is the entropy of the contributions (made to sum to one) over ln of the number
# of heads.

ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "full": ("full",),
    "local": ("local",),
    "performer": ("performer",),
    "compressed": ("compressed",),
    "mixed": MULTIFORMER,
}
CLASSES = 3


def frames_task(train: int, test: int, seed: int, *, segments: int, held: int, noise: float) -> Task:
    """`segments` symbols of six, each for `held` frames: a direction of its own in 8 dimensions, plus noise."""
    rng = torch.Generator().manual_seed(seed)
    symbols = torch.randint(0, 6, (train + test, segments), generator=rng)
    looks = torch.linalg.qr(torch.randn(8, 8, generator=rng)).Q[:6] * math.sqrt(8)
    frames = symbols.repeat_interleave(held, dim=1)
    vectors = looks[frames] + noise * torch.randn(*frames.shape, 8, generator=rng)
    alike = (symbols[:, :, None] == symbols[:, None]).sum(-1).clamp_max(CLASSES) - 1
    return Task("frames", {"vectors": vectors}, alike.repeat_interleave(held, dim=1), train, CLASSES)


def algebra(tokens: int, heads: int, dim: int, seed: int) -> dict[str, float]:
    """What must hold of the module whatever its weights, as the largest difference from what it should be."""
    rng = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 2, heads, tokens, dim, generator=rng, dtype=torch.float64)
    call: dict[str, Any] = {"visible": None, "causal": False, "scale": dim**-0.5}
    full = mix(softmax_pattern(query, key, **call), value)  # the slow obvious form, which no head of any kind runs
    window, stride = max(1, tokens // 8), 4
    rows = local_pattern(query, key, **call, window=window)
    place = torch.arange(tokens)
    outside = (place[:, None] - place).abs() > window
    kernels = torch.randn(2, heads, dim, dim, 4, generator=rng, dtype=torch.float64)
    anchors = compressed_pattern(query, key, **call, key_kernel=kernels[0], value_kernel=kernels[1], stride=stride)
    seen = local(query, key, torch.eye(tokens, dtype=torch.float64).expand(2, heads, -1, -1), **call, window=window)
    compressed(query, key, value, **call, key_kernel=kernels[0], value_kernel=kernels[1], stride=stride)
    return {
        "all_full_from_plain": float((mixed_heads(query, key, value, **call, kinds=("full",)) - full).abs().max()),
        "wide_local_from_full": float((local(query, key, value, **call, window=tokens) - full).abs().max()),
        "local_mass_outside": max(float(rows[..., outside].abs().max()), float(seen[..., outside].abs().max())),
        "anchors_missing": float(abs(anchors.shape[-1] - math.ceil(tokens / stride))),
        "anchor_rows_from_one": float((anchors.sum(-1) - 1).abs().max()),
    }


@torch.no_grad()
def contributions(model: Nano, task: Task) -> dict[str, Any]:
    """Of every layer and head; and how far the heads' writes and the bias are from what attention wrote, relatively."""
    taken: list[tuple[Tensor, Tensor]] = []
    hooks = []
    for block in model.blocks:
        assert isinstance(block, Block)
        hooks.append(
            block.attention.output.register_forward_hook(lambda _module, given, out: taken.append((given[0], out)))
        )
    try:
        model(**task.batch(task.test))
    finally:
        for hook in hooks:
            hook.remove()
    shares, apart = [], 0.0
    heads, dim = model.config.heads, model.config.dim
    for block, (given, out) in zip(model.blocks, taken, strict=True):
        assert isinstance(block, Block)
        mixed = given.reshape(*given.shape[:2], heads, dim)
        weight = block.attention.output.weight.T.reshape(heads, dim, -1)
        writes = torch.einsum("bthd,hdw->bhtw", mixed, weight)
        bias = block.attention.output.bias
        apart = max(apart, float((writes.sum(1) + bias - out).abs().max() / out.abs().max()))
        everyone = torch.ones(given.shape[:2], dtype=torch.bool)
        shares.append(head_contribution.function(mixed, weight, everyone).median(0).values)
    each = torch.stack(shares)
    return {
        "contributions": each.tolist(),
        "evenness": sum(evenness(layer) for layer in each) / len(each),
        "writes_from_module": apart,
    }


def evenness(shares: Float[Tensor, " head"]) -> float:
    """1 where all heads write as much, 0 where one writes all."""
    share = shares.double() / shares.double().sum()
    return float(torch.special.entr(share).sum() / math.log(len(share))) if len(share) > 1 else 1.0


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, by ranks; NaN where one of them is all alike."""
    from scipy.stats import spearmanr

    if len(set(one)) < 2 or len(set(other)) < 2:
        return math.nan
    return float(spearmanr(one, other).statistic)
