"""FAVOR+: softmax attention estimated by positive orthogonal random features, at a cost linear in n.

e^(q.k) is the mean over Gaussian w of e^(w.q - |q|^2/2) e^(w.k - |k|^2/2): products of positive features, unbiased, and
with less variance if the w are orthogonal (arXiv:2009.14794). A constant e^(|w|^2/4) for every feature moves between
the two sides, which keeps both in range; a factor common to a query's features cancels in its row. Unlike the usual
division by the largest key feature, nothing here depends on later tokens.

The start draws w from `seed`; another seed gives the redraw that the paper recommends during training.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.linear_attention import factorised_attention, factorised_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, Weights, mix


def start(size: Size, *, features: int | None = None, seed: int = 0) -> dict[str, Tensor]:
    """Draw blocks of orthogonal directions with Gaussian lengths; by default four features per dimension."""
    count = 4 * size.dim if features is None else features
    rng = torch.Generator().manual_seed(seed)
    blocks = -(-count // size.dim)
    gaussian = torch.randn(2, blocks, size.dim, size.dim, generator=rng, dtype=torch.float64)
    directions, triangular = torch.linalg.qr(gaussian[0])
    # Undo the sign convention of the QR decomposition: then all directions are equally likely, without bias.
    directions = directions * triangular.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    lengths = gaussian[1].norm(dim=-1, keepdim=True)
    return {"projection": (directions * lengths).flatten(0, 1)[:count].float()}


def pattern(inputs: AttentionInputs, *, projection: Float[Tensor, "feature dim"]) -> Weights:
    """Compute the pattern directly from its formula, in float32 or float64."""
    exact = torch.promote_types(inputs.query.dtype, torch.float32)
    query = inputs.query.to(exact) * inputs.scale  # the whole scale is on one side, which gives the same products
    key = inputs.unshared.key.to(exact)
    root = abs(inputs.scale) ** 0.5
    phi_query, phi_key = (
        (side @ projection.to(exact).mT - side.square().sum(-1, keepdim=True) / 2).exp()
        for side in (query / root, key * root)
    )
    return factorised_pattern(phi_query @ phi_key.mT, inputs.mask)


@variant(
    kind="pattern",
    title="Performer (FAVOR+)",
    summary="Softmax attention estimated by positive orthogonal random features, computed without the pattern.",
    citation="arXiv:2009.14794",
    formula="A_ij ~ sum_w e^(w.q_i - |q_i|^2/2) e^(w.k_j - |k_j|^2/2),  rows normalised",
    cost="n",
    drawn={"projection": "features x dim, Gaussian lengths, orthogonal in blocks"},
    start=start,
    pattern=pattern,
    changes="it estimates softmax with an error that falls with the root of the number of features",
)
def performer(inputs: AttentionInputs, *, projection: Float[Tensor, "feature dim"]) -> Mixed:
    plain, scale = inputs.real_keys(), inputs.scale
    if plain is None:  # queries sum over different keys, so the sum does not factorise
        return mix(pattern(inputs, projection=projection), inputs.value)
    root = abs(scale) ** 0.5
    shift = projection.to(torch.promote_types(inputs.query.dtype, torch.float32)).square().sum(-1) / 4

    def of_query(rows: Tensor) -> Tensor:
        exponent = _exponent(rows * (scale / root), projection) + shift
        return (exponent - exponent.detach().amax(-1, keepdim=True)).exp()

    def of_key(rows: Tensor) -> Tensor:
        return (_exponent(rows * root, projection) - shift).exp()

    return factorised_attention(inputs.unshared, plain, (of_query, of_key))


def _exponent(
    tokens: Float[Tensor, "batch head token dim"], projection: Float[Tensor, "feature dim"]
) -> Float[Tensor, "batch head token feature"]:
    exact = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    return exact @ projection.to(exact.dtype).mT - exact.square().sum(-1, keepdim=True) / 2
