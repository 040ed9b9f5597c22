"""Heads of low rank that look for the nearest or farthest point: formulas, and heads to train (arXiv:2407.16153).

Votes. Two orthonormal points x_1, x_2 in R^d and a query y have random directions. A head (u, w) of rank 1 chooses the
point with the larger (u.y)(w.x_i): with the unit vector z = (x_1 - x_2)/sqrt(2), its vote is sign(u.y) sign(w.z), and
the correct vote is sign(y.z). For a random direction E[sign(u.y) sign(u'.y)] = (2/pi) arcsin(u.u'), and y and z are
independent:

    two heads agree with probability            C = 1/2 + (2/pi^2) arcsin(u.u') arcsin(w.w')
    a head is right with probability            b = 1/2 + (1/pi) E_z[sign(w.z) arcsin(u.z)]

The projection of z on the plane of u and w is rho (cos psi, sin psi) with a uniform angle psi and
rho^2 ~ Beta(1, d/2 - 1); let u.w = sin(alpha). The sign of w.z restricts psi to half a turn, on most of which
arcsin(rho cos psi) is odd about the middle and cancels:

    E_z[sign(w.z) arcsin(u.z)] = E_rho (2/pi) integral_0^alpha arcsin(rho cos psi) d psi.

Each head chooses one of two orthonormal points, so <choice, choice'> is 1 if two heads agree and 0 if not. The expected
squared error of sum_i a_i choice_i is therefore 1 - 2 a.b + a.C a; it is least at C a = b, where it is 1 - b.C^-1 b.

Farthest point. A sequence has n unit vectors; the answer for each is the vector with the smallest inner product with
it. One head with W_Q W_K^T = -beta I and identity values finds it exactly in the limit of large beta: softmax(-beta X
X^T) X. Heads of rank r see r directions each. `FarthestPoint` is this head, `RankHeads` a block of heads to train.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.special import roots_jacobi, roots_legendre
from torch import Tensor, nn

from attnscope.core.errors import RefusalError

Units = Float[Tensor, "head width"]
EXACT = torch.float64
NODES = 64


def random_units(heads: int, width: int, rng: torch.Generator) -> Units:
    return F.normalize(torch.randn(heads, width, generator=rng, dtype=EXACT), dim=-1)


def agreement(u: Units, w: Units) -> Float[Tensor, "head head"]:
    """Return C, the probability that two heads choose the same point."""
    return 0.5 + (2 / math.pi**2) * _arcsin(u @ u.T) * _arcsin(w @ w.T)


def right(u: Units, w: Units) -> Float[Tensor, " head"]:
    """Return b, the probability that a head chooses the nearer point, by Gauss quadrature in both variables."""
    width = u.shape[-1]
    alpha = _arcsin((u * w).sum(-1)).numpy()
    if width == 2:
        rho, weight = np.ones(1), np.ones(1)  # the plane of u and w is the whole space
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
    """Return 1 - b.C^-1 b, the mean squared error of the best weighted sum of these heads."""
    b = right(u, w)
    # C is an average of outer products, so it has no negative eigenvalue. Equal heads make it singular; least squares
    # then takes the shortest solution.
    weights = torch.linalg.lstsq(agreement(u, w), b[:, None], driver="gelsd").solution[:, 0]
    return float(1 - b @ weights)


def best_errors(widths: tuple[int, ...], heads: tuple[int, ...], seed: int) -> list[dict[str, float | int]]:
    """For each number in `heads`, return the error of the best weighted sum of that many random heads."""
    rows: list[dict[str, float | int]] = []
    for width in widths:
        rng = torch.Generator().manual_seed(1000 * seed + width)
        u, w = random_units(max(heads), width, rng), random_units(max(heads), width, rng)
        rows += [
            {"width": width, "heads": count, "error": best_error(u[:count], w[:count]), "seed": seed} for count in heads
        ]
    return rows


def votes(u: Units, w: Units, draws: int, rng: torch.Generator) -> tuple[Float[Tensor, "draw head"], Tensor]:
    """Draw queries and pairs of points; return the vote of each head and the correct vote, as +1 or -1."""
    width = u.shape[-1]
    y = torch.randn(draws, width, generator=rng, dtype=EXACT)
    points = torch.randn(draws, width, 2, generator=rng, dtype=EXACT)
    first, second = torch.linalg.qr(points)[0].unbind(-1)
    # QR leaves the sign of a column to the library; random signs make directions uniform.
    signs = torch.randint(0, 2, (2, draws, 1), generator=rng) * 2.0 - 1
    z = first * signs[0] - second * signs[1]
    return ((y @ u.T) * (z @ w.T)).sign(), (y * z).sum(-1).sign()


def formula_against_draws(heads: int, width: int, draws: int, seed: int) -> dict[str, float | int]:
    """Return the largest differences between C and b and their estimates from random draws, and the expected
    difference.

    Heads come in families u_t = cos t u + sin t v, so that products from 0 to 1 occur. A share estimated from N draws
    has a standard deviation of at most 1 / (2 sqrt N); the largest of M errors is on average below sqrt(2 ln(2M)) times
    this.
    """
    rng = torch.Generator().manual_seed(seed)
    turn = torch.linspace(0, math.pi / 2, heads, dtype=EXACT)[:, None]
    u, v = random_units(1, width, rng), random_units(1, width, rng)
    v = F.normalize(v - (v @ u.T) * u, dim=-1)
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
    """Return the arcsine, after clamping: products of unit vectors can be rounded beyond 1."""
    return products.clamp(-1, 1).arcsin()


def unit_vectors(batch: int, points: int, width: int, rng: torch.Generator) -> Float[Tensor, "batch point width"]:
    return F.normalize(torch.randn(batch, points, width, generator=rng), dim=-1)


def farthest(x: Float[Tensor, "batch point width"]) -> Float[Tensor, "batch point width"]:
    """Return, for every point, the point with the smallest inner product with it."""
    which = (x @ x.mT).argmin(-1)
    return torch.take_along_dim(x, which[..., None], dim=1)


class FarthestPoint(nn.Module):
    """One head as wide as the points, which computes softmax(-beta X X^T) X."""

    beta: Tensor

    def __init__(self, beta: float) -> None:
        super().__init__()
        if beta <= 0:
            raise RefusalError(f"A head with beta {beta} does not look for the farthest point: give a beta over 0.")
        self.register_buffer("beta", torch.tensor(beta))
        self.main_input_name = "vectors"

    def forward(self, vectors: Float[Tensor, "batch point width"]) -> Float[Tensor, "batch point width"]:
        x = vectors[:, None]
        return F.scaled_dot_product_attention(-self.beta.to(x.dtype) * x, x, x, scale=1.0)[:, 0]


class RankHeads(nn.Module):
    """A block of heads of equal rank; queries, keys, values and output weights have heads x rank columns each."""

    def __init__(self, width: int, heads: int, rank: int, seed: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.heads, self.rank = heads, rank
        self.main_input_name = "vectors"
        shape = (heads * rank, width)
        self.query, self.key, self.value = (
            nn.Parameter(torch.randn(*shape, generator=rng) / width**0.5) for _ in range(3)
        )
        self.write = nn.Parameter(torch.randn(width, heads * rank, generator=rng) / (heads * rank) ** 0.5)

    def forward(self, vectors: Float[Tensor, "batch point width"]) -> Float[Tensor, "batch point width"]:
        batch, points, _ = vectors.shape
        query, key, value = (
            (vectors @ weight.T).reshape(batch, points, self.heads, self.rank).transpose(1, 2)
            for weight in (self.query, self.key, self.value)
        )
        # Points are unit vectors and logits must become large, so the scale is 1, not 1/sqrt(rank), for every rank.
        mixed = F.scaled_dot_product_attention(query, key, value, scale=1.0)
        return mixed.transpose(1, 2).flatten(2) @ self.write.T
