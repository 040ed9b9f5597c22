"""T collapsed to a map: one number for row i of the output and token j of the input.

With T_ij the submatrix of T from token j to row i, x_j the stream that enters at token j, y_i row i of the output, u_i
= y_i / |y_i|:

    norm           ||T_ij||_F          all that j can do to i, for any vector at j
    input          |T_ij x_j|          how much of j arrives at i
    output         |T_ij^T u_i|        how strongly i, in its own direction, depends on j
    contribution   <u_i, T_ij x_j>     contribution of j to i, with sign; the sum over j + <u_i, b_i> = |y_i|

Row by row, T^T (e_i (x) u_i) has <u_i, T_ij .> for all j at once: one pass back for each row of the output. Token by
token, T (e_j (x) x_j) has T_ij x_j for all i at once: one pass forward for each token. `contribution` follows from
either.

`norm` needs every channel of one side. If that is too much: for independent signs s, E |T_ij s|^2 = ||T_ij||_F^2, one
pass forward for each token and probe. The estimate m of the square is unbiased, but skewed for a block of low rank: a
draw that is too small has a standard error that is too small as well, and with 16 probes the root is then off to one
side by a third of a standard error on average. So the error is computed for the logarithm, where it is nearly
symmetric, by leaving out one probe at a time: with n probes and m_k the mean without probe k,

    e^2 = (n - 1) / n * sum_k (log m_k - mean log m)^2 / 4,    the number is sqrt m, within sqrt m exp(-+2 e)

`errors` are e sqrt m. With fewer than PROBES they are still too small for low ranks, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.progress import Advance
from attnscope.pathways.affine import Affine

EXACT_PRODUCTS = 4096  # most passes that the exact map by norm may take unless the caller asks for it
PROBES = 32

Map = Float[Tensor, "row token"]


@dataclass(frozen=True)
class Collapsed:
    """The map and the number of passes it took. For `contribution`, each row and its constant add up to its total."""

    values: Map
    products: int  # passes through the network, forward or back
    errors: Map | None = None
    probes: int | None = None  # None if the map is exact
    constants: Float[Tensor, " row"] | None = None
    totals: Float[Tensor, " row"] | None = None


@dataclass(frozen=True)
class Kind:
    title: str
    make: Callable[[Affine, Advance], Collapsed]


def collapsed(
    affine: Affine, kind: str, probes: int | None, exact: bool | None, seed: int, progress: Advance
) -> Collapsed:
    if kind not in MAPS:
        raise RefusalError(f"There is no map called '{kind}'.{nearest(kind, MAPS)}")
    if kind != "norm":
        if probes is not None or exact is False:
            raise RefusalError(
                f"The map by {kind} is exact, at one pass for each token or row: leave probes and exact out."
            )
        return MAPS[kind].make(affine, progress)
    if exact and probes is not None:
        raise RefusalError("An exact map takes no probes: leave one of the two out.")
    few = min(affine.enters.numel(), affine.leaves.numel()) <= EXACT_PRODUCTS
    if exact or (exact is None and probes is None and few):
        return MAPS[kind].make(affine, progress)
    probes = PROBES if probes is None else probes
    if probes < 2:
        raise RefusalError(f"A standard error needs two probes or more, not {probes}.")
    return _norm_by_probes(affine, probes, seed, progress)


def few_probes(probes: int | None) -> tuple[str, ...]:
    """Return a note if a map has fewer than PROBES probes."""
    if probes is None or probes >= PROBES:
        return ()
    return (f"{probes} probes are few: errors are too small where blocks have a low rank; give {PROBES} or more.",)


def rows_of(affine: Affine) -> Float[Tensor, "row out"]:
    """Return the output as rows; a vector of classes becomes a single row."""
    return affine.leaves if affine.leaves.ndim == 2 else affine.leaves[None]


def directions(affine: Affine) -> Float[Tensor, "row out"]:
    """Return u_i, every output row divided by its norm; a row of zeros stays zero."""
    rows = rows_of(affine)
    units: Tensor = rows / rows.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    return units


def _by_contribution(affine: Affine, progress: Advance) -> Collapsed:
    """Return the map by contribution, from the side that needs fewer passes; if equal, forward, which is cheaper."""
    units, tokens = directions(affine), affine.enters
    if len(units) < len(tokens):
        values = torch.cat([(back * tokens).sum(-1) for back in _row_by_row(affine, units[:, None], progress)])
    else:
        sent = _token_by_token(affine, tokens[:, None], progress)
        values = torch.cat([(rows * units).sum(-1) for rows in sent]).T
    constants = (units * affine.offset.reshape(units.shape)).sum(-1)
    return Collapsed(values, min(len(units), len(tokens)), constants=constants, totals=rows_of(affine).norm(dim=-1))


def _by_output(affine: Affine, progress: Advance) -> Collapsed:
    units = directions(affine)
    found = [back.norm(dim=-1) for back in _row_by_row(affine, units[:, None], progress)]
    return Collapsed(torch.cat(found), len(units))


def _by_input(affine: Affine, progress: Advance) -> Collapsed:
    found = [sent.norm(dim=-1) for sent in _token_by_token(affine, affine.enters[:, None], progress)]
    return Collapsed(torch.cat(found).T, len(affine.enters))


def _by_norm(affine: Affine, progress: Advance) -> Collapsed:
    """Return the map by norm. Propagate unit vectors from whichever side, input or output, has fewer numbers."""
    rows, tokens = rows_of(affine), affine.enters
    if rows.numel() < tokens.numel():
        every = torch.eye(rows.shape[1]).to(rows).expand(len(rows), -1, -1)
        back = torch.cat([some.square().sum(-1) for some in _row_by_row(affine, every, progress)])
        return Collapsed(back.reshape(*rows.shape, len(tokens)).sum(1).sqrt(), rows.numel())
    every = torch.eye(tokens.shape[1]).to(tokens).expand(len(tokens), -1, -1)
    sent = torch.cat([some.square().sum(-1) for some in _token_by_token(affine, every, progress)])
    return Collapsed(sent.reshape(*tokens.shape, len(rows)).sum(1).T.sqrt(), tokens.numel())


def _norm_by_probes(affine: Affine, probes: int, seed: int, progress: Advance) -> Collapsed:
    tokens, rows = affine.enters, rows_of(affine)
    # Signs are drawn on the CPU: the same seed gives the same signs on any device.
    generator = torch.Generator().manual_seed(seed)
    signs = 2 * torch.randint(0, 2, (len(tokens), probes, tokens.shape[1]), generator=generator) - 1
    columns = [sent.square().sum(-1) for sent in _token_by_token(affine, signs.to(tokens), progress)]
    squares = torch.cat(columns).reshape(len(tokens), probes, len(rows))
    size = squares.mean(1).T.sqrt()
    without = (squares.sum(1, keepdim=True) - squares) / (probes - 1)
    logs = without.clamp_min(torch.finfo(size.dtype).tiny).log()
    error = ((probes - 1) / probes * (logs - logs.mean(1, keepdim=True)).square().sum(1)).sqrt().T / 2
    return Collapsed(size, len(tokens) * probes, size * error, probes)


def _token_by_token(
    affine: Affine, vectors: Float[Tensor, "token several width"], progress: Advance
) -> Iterator[Float[Tensor, "some row out"]]:
    """Yield T (e_j (x) v) for all vectors v of every token j, in order."""
    rows = rows_of(affine)
    for placed in _placed(vectors, affine.at_once, "passes forward", progress):
        yield affine.times(placed).reshape(len(placed), *rows.shape)


def _row_by_row(
    affine: Affine, answers: Float[Tensor, "row several out"], progress: Advance
) -> Iterator[Float[Tensor, "some token width"]]:
    """Yield T^T (e_i (x) v) for all v of every row i, in order."""
    for placed in _placed(answers, affine.at_once, "passes back", progress):
        yield affine.transposed_times(placed.reshape(len(placed), *affine.leaves.shape))


def _placed(
    vectors: Float[Tensor, "place several width"], at_once: int, what: str, progress: Advance
) -> Iterator[Float[Tensor, "some place width"]]:
    """Yield e_i (x) v for all vectors v of every place i, in order, some at a time."""
    places, several, width = vectors.shape
    total = places * several
    for begin in range(0, total, at_once):
        progress(what, begin, total)
        which = torch.arange(begin, min(begin + at_once, total))
        placed = vectors.new_zeros(len(which), places, width)
        placed[torch.arange(len(which)), which // several] = vectors[which // several, which % several]
        yield placed
    progress(what, total, total)


MAPS: dict[str, Kind] = {
    "contribution": Kind("what each token adds to each row of the output", _by_contribution),
    "norm": Kind("norm of the block from each token to each row", _by_norm),
    "input": Kind("how much of each token arrives at each row", _by_input),
    "output": Kind("how strongly each row depends on each token", _by_output),
}
