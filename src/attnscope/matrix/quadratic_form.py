"""SwiGLU without its SiLU is a quadratic form of the token, one for every channel that it writes (arXiv:2603.05498).

    F(h)_k = sum_i D_ki (g_i . h) (u_i . h) = h^T U_k h = h^T S_k h
    U_k = sum_i D_ki g_i u_i^T,  S_k = (U_k + U_k^T)/2

with g_i, u_i the rows of W_gate and W_up, and D = W_down. A channel whose S_k is far larger than the others', with one
eigenpair in which nearly all of it lies, is amplified quadratically for tokens along that eigenvector: where massive
activations come from.

All norms at once need no form written out (derived):

    ||U_k||_F^2 = tr(U_k U_k^T) = sum_ij D_ki D_kj (g_i . g_j)(u_i . u_j) = d_k^T (G G^T * U U^T) d_k
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def without_silu(
    tokens: Float[Tensor, "*token width"],
    gate: Float[Tensor, "hidden width"],
    up: Float[Tensor, "hidden width"],
    down: Float[Tensor, "channel hidden"],
) -> Float[Tensor, "*token channel"]:
    """W_down (W_gate h * W_up h)."""
    return ((tokens @ gate.mT) * (tokens @ up.mT)) @ down.mT


def quadratic_form(
    gate: Float[Tensor, "hidden width"], up: Float[Tensor, "hidden width"], row: Float[Tensor, " hidden"]
) -> Float[Tensor, "width width"]:
    """S_k of one channel, whose row of W_down is `row`."""
    form = gate.mT @ (row[:, None] * up)
    return (form + form.mT) / 2


def form_norms(
    gate: Float[Tensor, "hidden width"], up: Float[Tensor, "hidden width"], down: Float[Tensor, "channel hidden"]
) -> Float[Tensor, " channel"]:
    """||U_k||_F of every channel, from the two Gram matrices of hidden units; in float64."""
    gate, up, down = gate.double(), up.double(), down.double()
    products = (gate @ gate.mT) * (up @ up.mT)
    return ((down @ products) * down).sum(-1).clamp_min(0.0).sqrt()


def dominance(form: Float[Tensor, "width width"]) -> tuple[float, Float[Tensor, " width"]]:
    """|largest eigenvalue| / ||S||_F, 1 where one eigenpair is all there is and 1/sqrt(width) at least; its vector."""
    values, vectors = torch.linalg.eigh(form.double())
    most = int(values.abs().argmax())
    size = float(values.norm())
    return (float(values[most].abs()) / size if size else 0.0), vectors[:, most]
