"""T collapsed to a map: one number for row i of the output and token j of the input.

With T_ij the block of T from token j to row i, x_j what enters, y_i row i of the output, u_i = y_i / |y_i|:

    norm           ||T_ij||_F          all that j can do to i; what stood there plays no part
    input          |T_ij x_j|          how much of j arrives at i
    output         |T_ij^T u_i|        how strongly i, in its own direction, listens to j
    contribution   <u_i, T_ij x_j>     what j puts into i, with a sign: sum_j of it + <u_i, b_i> = |y_i|

Row by row, T^T (e_i (x) u_i) has <u_i, T_ij .> for all j at once: one pass back for each row of the output. Token by
token, T (e_j (x) x_j) has T_ij x_j for all i at once: one pass forward for each token. `contribution` follows from
either.

`norm` needs every channel of one side. Where that is too much: for independent signs s, E |T_ij s|^2 = ||T_ij||_F^2,
one pass forward for each token and probe. The estimate m of the square is unbiased, but skewed where a block has a low
rank: a draw that is too small has a standard error that is too small as well, and with 16 probes misses of the root are
then a third of an error to one side on average. So the error is that of the logarithm, by leaving out a probe at a
time, where it is nearly even: with n probes and m_k the mean without probe k,

    e^2 = (n - 1) / n * sum_k (log m_k - mean log m)^2 / 4,    the number is sqrt m, within sqrt m exp(-+2 e)

`errors` are e sqrt m. Below PROBES they are still too small where ranks are low, which is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.progress import Advance
from attnscope.pathways.operator_jacobian import Affine

EXACT_PRODUCTS = 4096  # most passes that the exact map by norm may take unless it is asked for
PROBES = 32

Map = Float[Tensor, "row token"]


@dataclass(frozen=True)
class Collapsed:
    """The map, and what it took. `constants` and `totals` are what a row adds up with, and to."""

    values: Map
    products: int  # passes through the network, forward or back
    errors: Map | None = None
    probes: int | None = None  # None: exact
    constants: Float[Tensor, " row"] | None = None
    totals: Float[Tensor, " row"] | None = None


@dataclass(frozen=True)
class Kind:
    """How a map is made, and what it says."""

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
    """What must be said of a map from so many."""
    if probes is None or probes >= PROBES:
        return ()
    return (f"{probes} probes are few: errors are too small where blocks have a low rank; give {PROBES} or more.",)


def rows_of(affine: Affine) -> Float[Tensor, "row out"]:
    """The output by rows; a model that gives one row of classes has one."""
    return affine.leaves if affine.leaves.ndim == 2 else affine.leaves[None]


def directions(affine: Affine) -> Float[Tensor, "row out"]:
    """u_i; a row that is zero has none, and stays zero."""
    rows = rows_of(affine)
    units: Tensor = rows / rows.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    return units


def _by_contribution(affine: Affine, progress: Advance) -> Collapsed:
    """From the side with fewer passes; a pass forward is the cheaper one."""
    units, tokens = directions(affine), affine.enters
    if len(units) < len(tokens):
        values = torch.cat([(back * tokens).sum(-1) for back in _row_by_row(affine, units[:, None], progress)])
    else:
        sent = _token_by_token(affine, tokens[:, None], progress)
        values = torch.cat([(one * units).sum(-1) for one in sent]).T
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
    """All channels of the side that has fewer numbers."""
    rows, tokens = rows_of(affine), affine.enters
    if rows.numel() < tokens.numel():
        every = torch.eye(rows.shape[1]).to(rows).expand(len(rows), -1, -1)
        back = torch.cat([one.square().sum(-1) for one in _row_by_row(affine, every, progress)])
        return Collapsed(back.reshape(*rows.shape, len(tokens)).sum(1).sqrt(), rows.numel())
    every = torch.eye(tokens.shape[1]).to(tokens).expand(len(tokens), -1, -1)
    sent = torch.cat([one.square().sum(-1) for one in _token_by_token(affine, every, progress)])
    return Collapsed(sent.reshape(*tokens.shape, len(rows)).sum(1).T.sqrt(), tokens.numel())


def _norm_by_probes(affine: Affine, probes: int, seed: int, progress: Advance) -> Collapsed:
    tokens, rows = affine.enters, rows_of(affine)
    # Drawn by the CPU wherever the network is: the same seed then means the same signs.
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
    """T (e_j (x) v) for all vectors v of every token j, in order."""
    tokens, several, width = vectors.shape
    total, rows = tokens * several, rows_of(affine)
    for begin in range(0, total, affine.at_once):
        progress("passes forward", begin, total)
        which = torch.arange(begin, min(begin + affine.at_once, total))
        given = vectors.new_zeros(len(which), tokens, width)
        given[torch.arange(len(which)), which // several] = vectors[which // several, which % several]
        yield affine.times(given).reshape(len(which), *rows.shape)
    progress("passes forward", total, total)


def _row_by_row(
    affine: Affine, answers: Float[Tensor, "row several out"], progress: Advance
) -> Iterator[Float[Tensor, "some token width"]]:
    """T^T (e_i (x) v) for all v of every row i, in order."""
    rows, several, out = answers.shape
    total = rows * several
    for begin in range(0, total, affine.at_once):
        progress("passes back", begin, total)
        which = torch.arange(begin, min(begin + affine.at_once, total))
        given = answers.new_zeros(len(which), rows, out)
        given[torch.arange(len(which)), which // several] = answers[which // several, which % several]
        yield affine.transposed_times(given.reshape(len(which), *affine.leaves.shape))
    progress("passes back", total, total)


MAPS: dict[str, Kind] = {
    "contribution": Kind("what each token puts into each row of the output", _by_contribution),
    "norm": Kind("norm of the block from each token to each row", _by_norm),
    "input": Kind("how much of each token arrives at each row", _by_input),
    "output": Kind("how strongly each row listens to each token", _by_output),
}
