"""The largest individual paths: which chain of heads carries how much of a target, and from which token.

A path through L blocks takes at each the skip or one head (MLPs and norms are part of the block). Its contribution is
<B_1^T ... B_L^T g, x>, with g the target's adjoint and x the stream that enters. The search goes backwards: the adjoint
of a suffix of choices is pulled back through one more block for every choice there, and the best `width` are kept.

The search meets in the middle. Routes through the first blocks are few, and their streams are known (`energy`): the
product of a suffix's adjoint with each of these streams is the contribution of the path they form. Choices at the last
blocks are all kept while they are few, and not ranked.

The best suffixes are not the ones with a large sum over all completions, which may cancel. With random signs on all
earlier heads (see `energy`), E <a, Z>^2 over signed streams Z is the sum of squares of all completions of the suffix
with adjoint a, and no completion is larger than its root. So suffixes are ranked by that root, estimated from some
draws, and the largest root that was dropped bounds the contribution of every missed path. At the input a root is the
contribution itself: if nothing was dropped before, the answer is exact.

A head h at a block is ranked before its adjoint is pulled to the block's input: with b the adjoint at its output and
A_h Z V_h its output for the signed stream, <V_h^T A_h^T b, Z> = <b, A_h Z V_h>. Only the adjoints that are kept are
pulled further.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.pathways.energy import OuterRoutes, Routes, Signs, drawn_signs, options, outer_routes, signs_of
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.heads import AT_ONCE, AtHeads, BlockTranspose
from attnscope.pathways.network import Edges, Network, only_attention, scale_heads, split_heads
from attnscope.pathways.targets import Functional, network_read_by


@dataclass(frozen=True)
class TopPath:
    """One path: its `heads` as (block, head) in order, and the `token` with the largest part, `of_token`, of its
    contribution.
    """

    heads: tuple[tuple[int, int], ...]
    contribution: float
    sequence: int
    token: int
    of_token: float


@dataclass(frozen=True)
class TopPaths:
    """The largest paths. No other path is larger than `missed`: for certain if `exact`, else by an estimate from random
    signs.
    """

    paths: tuple[TopPath, ...]
    exact: bool
    missed: float
    width: int


@dataclass(frozen=True, eq=False)
class _Beam:
    """The suffixes kept: their choices, and their adjoints or the contributions of all paths that end in them."""

    routes: Routes
    known: Float[Tensor, " suffix *known"]


class _EnoughError(Exception):
    """Raised to leave a block once the part that is needed has run."""


@dataclass(frozen=True, eq=False)
class _Signed:
    """Streams with random signs on all earlier heads: before a block, and mixed by each of its heads."""

    before: Float[Tensor, " draw *shape"]
    mixed: Float[Tensor, "draw batch head token channel"]


def top_paths(
    network: Network,
    target: Functional,
    count: int = 10,
    width: int = 32,
    draws: int = 16,
    seed: int = 0,
    advance: Advance = silent,
    outer: OuterRoutes | None = None,
) -> TopPaths:
    """Return the `count` paths from the input with the largest contributions to `target`, either sign, largest first.
    `outer` are the outer routes, at most `width` at either end, if known."""
    if not 1 <= count <= width:
        raise RefusalError(f"A search that keeps {width} suffixes cannot list {count} paths: ask for 1 to {width}.")
    network = network_read_by(target, network)
    outer = outer_routes(network, target, width) if outer is None else outer
    signs = drawn_signs(outer.blocks, draws, torch.Generator().manual_seed(seed), network.streams[0])
    signed = _signed_streams(network, outer, signs)
    beam = _Beam(outer.suffixes, outer.adjoints)
    dropped = 0.0  # the largest root of a suffix that was dropped before the input
    for layer in reversed(range(outer.first, outer.last)):
        transpose = BlockTranspose(network, layer)
        at_heads = transpose.to_heads(beam.known)
        kept, root = _best(_roots(at_heads, signed.pop(), outer.blocks[layer]), width)
        dropped = max(dropped, root)
        rows = (kept % len(beam.routes)).tolist()
        choices = (kept // len(beam.routes) + options(outer.blocks[layer])[0]).tolist()
        routes = tuple((choice, *beam.routes[row]) for row, choice in zip(rows, choices, strict=True))
        beam = _Beam(routes, transpose.to_input(at_heads, rows, choices))
        advance("paths", network.layers - layer, network.layers)
    contributions = _Beam(beam.routes, beam.known.flatten(1) @ outer.streams.flatten(1).mT)  # [suffix, prefix]
    best, root = _through_prefixes(contributions, outer, signs, width)
    largest = best.known[:, 0].abs().argsort(descending=True, stable=True)[:count].tolist()
    suffixes = {route: row for row, route in enumerate(beam.routes)}
    chosen = [best.routes[row] for row in largest]
    rows_of_chosen = torch.tensor([suffixes[route[outer.first :]] for route in chosen], device="cpu")
    paths = tuple(_described(network, outer, chosen, beam.known[rows_of_chosen]))
    advance("paths", network.layers, network.layers)
    least = abs(paths[-1].contribution) if len(paths) == count else 0.0  # 0 if there are fewer than `count` paths
    dropped = max(dropped, root)
    return TopPaths(paths, dropped == 0.0, max(dropped, least), width)


def _best(roots: Float[Tensor, " candidate"], width: int) -> tuple[Tensor, float]:
    """Return the candidates to keep, best first, and the largest root that is dropped."""
    order = roots.argsort(descending=True, stable=True)
    return order[:width].cpu(), float(roots[order[width]]) if len(order) > width else 0.0


def _roots(at_heads: AtHeads, signed: _Signed, block: Edges) -> Float[Tensor, " candidate"]:
    """Return the root energy of all completions for every choice (skip, first head, ...) followed by every suffix."""
    products = torch.einsum("wnhtc,dnhtc->hwd", at_heads.heads, signed.mixed)
    if block.skip:
        assert at_heads.skip is not None
        products = torch.cat([(at_heads.skip.flatten(1) @ signed.before.flatten(1).mT)[None], products])
    return products.square().mean(2).sqrt().flatten()


def _through_prefixes(beam: _Beam, outer: OuterRoutes, signs: Signs, width: int) -> tuple[_Beam, float]:
    """Search through the first blocks, where the contributions of all paths are known. At block 0 the root is the size
    of the contribution itself: the smallest listed path bounds every path dropped there."""
    dropped, prefixes = 0.0, outer.prefixes
    for layer in reversed(range(outer.first)):
        choices = options(outer.blocks[layer])
        prefixes = tuple(dict.fromkeys(route[:layer] for route in prefixes))
        apart = beam.known.reshape(len(beam.routes), len(prefixes), len(choices))
        candidates = apart.permute(2, 0, 1).flatten(0, 1)  # [choice and suffix, prefix]
        sums = candidates @ signs_of(prefixes, signs[:layer]).to(candidates).mT
        kept, root = _best(sums.square().mean(1).sqrt(), width)
        dropped = max(dropped, root if layer > 0 else 0.0)
        many = len(beam.routes)
        routes = tuple((choices[i // many], *beam.routes[i % many]) for i in kept.tolist())
        beam = _Beam(routes, candidates[kept])
    return beam, dropped


@torch.no_grad()
def _signed_streams(network: Network, outer: OuterRoutes, signs: Signs) -> list[_Signed]:
    """Return the signed streams at every block between `outer.first` and `outer.last`, in order."""
    weights = signs_of(outer.prefixes, signs[: outer.first]).to(outer.streams)
    before = torch.einsum("dp,p...->d...", weights.expand(len(signs[0]) if signs else 1, -1), outer.streams)
    signed = []
    for layer in range(outer.first, outer.last):
        after, mixed = [], []
        for start in range(0, len(before), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            seen: list[Tensor] = []

            def keep(passing: Graded, pattern: Tensor, seen: list[Tensor] = seen, layer: int = layer) -> None:
                seen.append(passing.sums.parts[:, 0, 0])
                if layer + 1 == outer.last:
                    raise _EnoughError

            factors = signs[layer][some]
            graded = Graded.of(network.streams[layer], before[some, None, None], None, "none")
            signing = scale_heads(lambda heads, factors=factors: factors, network)  # type: ignore[misc]
            with suppress(_EnoughError), watching(keep), watching(signing):  # the last block need not run to its end
                after.append(network.block(layer, graded).parts[:, 0, 0])
            mixed.append(split_heads(only_attention(seen, network, layer), network))
        signed.append(_Signed(before, torch.cat(mixed)))
        before = torch.cat(after) if after else before
    return signed


def _described(
    network: Network, outer: OuterRoutes, routes: list[tuple[int, ...]], adjoints: Tensor
) -> Iterator[TopPath]:
    """Yield whole paths. `adjoints` belong to their suffixes after the first blocks and are pulled back here."""
    every = list(range(len(routes)))
    for layer in reversed(range(outer.first)):
        transpose = BlockTranspose(network, layer)
        adjoints = transpose.to_input(transpose.to_heads(adjoints), every, [route[layer] for route in routes])
    by_token = (adjoints * network.streams[0]).sum(-1)  # [path, batch, token]
    for route, tokens in zip(routes, by_token, strict=True):
        sequence, token = divmod(int(tokens.abs().argmax()), tokens.shape[1])
        heads = tuple((layer, choice - 1) for layer, choice in enumerate(route) if choice)
        yield TopPath(heads, float(tokens.sum()), sequence, token, float(tokens[sequence, token]))
