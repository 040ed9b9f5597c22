"""Stacks of random Markov attention with value weights, X_l = A_l X_(l-1) W_l (arXiv:2410.07799), and their laws.

Patterns are A = softmax(sqrt(ln 2) G), where G has independent normal entries: the entries of n A have mean 1 and
variance e^(ln 2) - 1 = 1. The entries of W_l are normal with variance 1/width, X_0 X_0^T = I, and there are as many
tokens as coordinates. (Without W_l the stable ranks of A - J are twice as large.)

Write A = J + B, J = 11^T/n. Rows of A sum to one, so B 1 = 0, and the entries of B have variance 1/n^2 (derived):

    s_1        with e = 1/sqrt(n): A^T A e = A^T e and |e^T B|^2 = 1/n, so s_1 = 1 + 1/(2n)
    s_2        the largest singular value of B, a matrix of independent entries, so sqrt(n) s_2 = 2
    products   B J = 0, so A_l ... A_1 = 1 u^T + B_l ... B_1: a matrix of rank one, and a product of l random matrices

Multiplied by W_1 ... W_l, the first part has norm 1, and n^(l/2) times the second is a product of k = 2l square normal
matrices, whose squared singular values follow the Fuss-Catalan law: mean 1, mean square k + 1, largest
(k+1)^(k+1)/k^k. With S = X_l X_l^T and sr(S) = ||S||_F^2/||S||_2^2, the sum of s_i^4 over s_1^4, therefore

    softmax    sr - 1 = (2l + 1) n^(1-2l)                 slopes -1, -3, -5 in n
    A - J      sr     = (2l + 1) n / ((2l+1)^(2l+1)/(2l)^(2l))^2

and dX_L/dW_l = (A_L ... A_1 X_0 W_1 ... W_(l-1)) (x) (W_(l+1) ... W_L)^T has the Frobenius norm of a Kronecker product,
the product of the norms: sqrt(1) sqrt(n) with softmax, sqrt(n^(1-L)) sqrt(n) with A - J. Here n is the number of tokens
and of coordinates, and the second factor comes from the coordinates: with independent tokens of unit length in a fixed
width, |u^T X_0| is still 1/sqrt(n), so the length alone leaves 1 with softmax and n^((1-L)/2) with A - J.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.plain_attention import softmax_pattern
from attnscope.matrix.visibility import AttentionInputs
from attnscope.variants.minus_uniform import minus_uniform

Square = Float[Tensor, "token token"]
SCALE = math.log(2) ** 0.5


def excess(stream: Float[Tensor, "token width"]) -> float:
    """Return sr(X X^T) - 1 as sum_(i > 1) s_i^4 / s_1^4, without a subtraction that would cancel digits."""
    values = torch.linalg.svdvals(stream)
    return float((values[1:] / values[0]).pow(4).sum())


def softmax_excess(tokens: int, layer: int) -> float:
    """Return the predicted sr - 1 of softmax stacks, (2l+1) n^(1-2l)."""
    return (2 * layer + 1) * float(tokens) ** (1 - 2 * layer)


def kept_rank(tokens: int, layer: int) -> float:
    """Return the predicted stable rank for A - J: n (k+1) / edge^2, with k = 2l and edge = (k+1)^(k+1) / k^k."""
    k = 2 * layer
    edge = float(k + 1) ** (k + 1) / float(k) ** k
    return tokens * (k + 1) / edge**2


def normal(rows: int, columns: int, rng: torch.Generator) -> Float[Tensor, "{rows} {columns}"]:
    return torch.randn(rows, columns, generator=rng, dtype=torch.float64)


def attended(logits: Square, stream: Float[Tensor, "token width"]) -> tuple[Square, Float[Tensor, "token width"]]:
    """Return A = softmax(sqrt(ln 2) logits) and (A - J) X. The logits serve as queries, with identity keys."""
    query, key = logits[None, None], torch.eye(len(logits), dtype=logits.dtype)[None, None]
    inputs = AttentionInputs(query, key, stream[None, None], scale=SCALE)
    pattern = softmax_pattern(inputs)[0, 0]
    apart: Tensor = minus_uniform(inputs)[0, 0]
    return pattern, apart


@torch.no_grad()
def stacked(tokens: int, layers: int, rng: torch.Generator) -> dict[str, Any]:
    """Draw one stack; return singular values of its first pattern, sr - 1 after each block, and gradient norms."""
    measured: dict[str, Any] = {"softmax": [], "A - J": [], "A - J, no values": []}
    products = {name: torch.eye(tokens, dtype=torch.float64) for name in ("softmax", "A - J")}  # A_l ... A_1 X_0
    weights: list[Tensor] = []
    after = torch.eye(tokens, dtype=torch.float64)  # W_1 ... W_l
    for layer in range(layers):
        logits = normal(tokens, tokens, rng)
        weights.append(normal(tokens, tokens, rng) / tokens**0.5)
        after = after @ weights[-1]
        pattern, apart = attended(logits, products["A - J"])
        if layer == 0:
            measured["singular"] = torch.linalg.svdvals(pattern)[:2].tolist()
        products = {"softmax": pattern @ products["softmax"], "A - J": apart}
        for name, product in products.items():
            measured[name].append(excess(product @ after))
        measured["A - J, no values"].append(excess(apart))
    later = torch.linalg.multi_dot(weights[1:]) if layers > 2 else weights[-1]
    measured["gradient"] = {name: gradient_norm(product, later) for name, product in products.items()}
    return measured


def gradient_norm(before: Float[Tensor, "token width"], after: Float[Tensor, "width width"]) -> float:
    """Return ||d(M W N)/dW||_F = ||M||_F ||N||_F, where M is `before` and N is `after`."""
    return float(torch.linalg.matrix_norm(before) * torch.linalg.matrix_norm(after))


@torch.no_grad()
def gradients_in_width(tokens: int, width: int, layers: int, rng: torch.Generator) -> dict[str, float]:
    """Return ||dX_L/dW_1||_F for independent tokens of norm about 1, in a width independent of their number."""
    start = normal(tokens, width, rng) / width**0.5
    mixed = {"softmax": start, "A - J": start}
    for _ in range(layers):
        pattern, apart = attended(normal(tokens, tokens, rng), mixed["A - J"])
        mixed = {"softmax": pattern @ mixed["softmax"], "A - J": apart}
    later = torch.eye(width, dtype=torch.float64)
    for _ in range(layers - 1):
        later = later @ normal(width, width, rng) / width**0.5
    return {name: gradient_norm(stream, later) for name, stream in mixed.items()}


@torch.no_grad()
def key_query_singular_values(tokens: int, rng: torch.Generator) -> list[float]:
    """Return the two largest singular values of a pattern from random queries and keys, with equal logit variance."""
    query, key = normal(tokens, tokens, rng), normal(tokens, tokens, rng)
    pattern = (SCALE * query @ key.mT / tokens**0.5).softmax(-1)
    values: list[float] = torch.linalg.svdvals(pattern)[:2].tolist()
    return values
