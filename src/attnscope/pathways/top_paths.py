"""The largest individual paths: which chain of heads carries how much of a target, and from which token.

A path through L blocks takes at each the skip or one head (MLPs and norms are part of the block). Its contribution is
<B_1^T ... B_L^T g, x>, with g the target's adjoint and x the stream that enters. The search goes backwards: the adjoint
of a suffix of choices is pulled back through one more block for every choice there, and the best `width` are kept.

The search meets in the middle. Ways through the first blocks are few, and their streams are written out (`ends`): a
suffix that has come to them is one product with each, which is the contribution of every path that it ends. Choices at
the last blocks are all kept while they are few, and not ranked.

Which are best? Not those with a large sum over all completions, which may cancel. With random signs on all earlier
heads (see `energy`), E <a, Z>^2 over signed streams Z is the sum of squares of all completions of the suffix with
adjoint a, and no completion is larger than its root. So suffixes are ranked by that root, estimated from some draws,
and the largest root that was dropped says what may have been missed. Where nothing was dropped before the input is
reached, where a root is the contribution itself, the answer is exact.

A head h at a block is ranked before its adjoint is pulled to the block's input: with b the adjoint at its output and
A_h Z V_h what it makes of the signed stream, <V_h^T A_h^T b, Z> = <b, A_h Z V_h>. Only those that are kept go on.
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
from attnscope.pathways.ends import Ends, Signs, Ways, both_ends, drawn_signs, options, signs_of
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.heads import AT_ONCE, Halfway, Opened
from attnscope.pathways.network import Edges, Network, heads_apart, multiplied, one_attention
from attnscope.pathways.targets import Functional, seen_by


@dataclass(frozen=True)
class TopPath:
    """`heads` are (layer, head) in order; `token` is where most of it begins, with `of_token` of the contribution."""

    heads: tuple[tuple[int, int], ...]
    contribution: float
    sequence: int
    token: int
    of_token: float


@dataclass(frozen=True)
class TopPaths:
    """No path outside the list is larger than `missed`: for certain where the answer is `exact`, else by an estimate
    from random signs."""

    paths: tuple[TopPath, ...]
    exact: bool
    missed: float
    width: int


@dataclass(frozen=True, eq=False)
class _Beam:
    """Suffixes: their choices, and what is known of them (adjoints, or contributions of all that they end)."""

    ways: Ways
    known: Float[Tensor, " suffix *known"]


class _EnoughError(Exception):
    """What is wanted of a block is known, and the rest of it need not run."""


@dataclass(frozen=True, eq=False)
class _Signed:
    """Streams with random signs on all earlier heads: before a block, and as every head of it mixes them."""

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
    ends: Ends | None = None,
) -> TopPaths:
    """The `count` paths from the input with the largest contributions to `target`, either sign, largest first. `ends`
    are both ends of the paths with at most `width` ways each, where they are known."""
    if not 1 <= count <= width:
        raise RefusalError(f"A search that keeps {width} suffixes cannot list {count} paths: ask for 1 to {width}.")
    network = seen_by(target, network)
    ends = both_ends(network, target, width) if ends is None else ends
    signs = drawn_signs(ends.blocks, draws, torch.Generator().manual_seed(seed), network.streams[0])
    signed = _signed_streams(network, ends, signs)
    beam = _Beam(ends.suffixes, ends.adjoints)
    dropped = 0.0  # the largest root of a suffix that has not come to the input
    for layer in reversed(range(ends.first, ends.last)):
        opened = Opened(network, layer)
        halfway = opened.halfway(beam.known)
        roots = _roots(halfway, signed.pop(), ends.blocks[layer])
        kept, root = _best(roots, width)
        dropped = max(dropped, root)
        places, choices = kept % len(beam.ways), kept // len(beam.ways) + options(ends.blocks[layer])[0]
        pairs = list(zip(places.tolist(), choices.tolist(), strict=True))
        ways = tuple((choice, *beam.ways[place]) for place, choice in pairs)
        beam = _Beam(ways, opened.onwards(halfway, places.tolist(), choices.tolist()))
        advance("paths", network.layers - layer, network.layers)
    met = _Beam(beam.ways, beam.known.flatten(1) @ ends.streams.flatten(1).mT)  # [suffix, prefix]: contributions
    found, root = _through_prefixes(met, ends, signs, width)
    largest = found.known[:, 0].abs().argsort(descending=True, stable=True)[:count].tolist()
    suffixes = {way: place for place, way in enumerate(beam.ways)}
    chosen = [found.ways[place] for place in largest]
    places = torch.tensor([suffixes[way[ends.first :]] for way in chosen], device="cpu")
    paths = tuple(_described(network, ends, chosen, beam.known[places]))
    advance("paths", network.layers, network.layers)
    least = abs(paths[-1].contribution) if len(paths) == count else 0.0  # fewer than asked for: there are no others
    dropped = max(dropped, root)
    return TopPaths(paths, dropped == 0.0, max(dropped, least), width)


def _best(roots: Float[Tensor, " candidate"], width: int) -> tuple[Tensor, float]:
    """Which candidates are kept, best first, and the largest root that is dropped."""
    order = roots.argsort(descending=True, stable=True)
    return order[:width].cpu(), float(roots[order[width]]) if len(order) > width else 0.0


def _roots(halfway: Halfway, signed: _Signed, block: Edges) -> Float[Tensor, " candidate"]:
    """Of every suffix behind the skip, behind the first head, the second, ...: the root of the energy of what completes
    it."""
    products = torch.einsum("wnhtc,dnhtc->hwd", halfway.heads, signed.mixed)
    if block.skip:
        assert halfway.skip is not None
        products = torch.cat([(halfway.skip.flatten(1) @ signed.before.flatten(1).mT)[None], products])
    return products.square().mean(2).sqrt().flatten()


def _through_prefixes(met: _Beam, ends: Ends, signs: Signs, width: int) -> tuple[_Beam, float]:
    """The search through the first blocks, where the contributions of all paths are known. Last of all the root is the
    size of the contribution itself, and what is dropped there is told by the smallest that is listed."""
    beam, dropped = met, 0.0
    prefixes = ends.prefixes
    for layer in reversed(range(ends.first)):
        choices = options(ends.blocks[layer])
        prefixes = tuple(dict.fromkeys(way[:layer] for way in prefixes))
        apart = beam.known.reshape(len(beam.ways), len(prefixes), len(choices))
        candidates = apart.permute(2, 0, 1).flatten(0, 1)  # [choice and suffix, prefix]
        sums = candidates @ signs_of(prefixes, signs[:layer]).to(candidates).mT
        kept, root = _best(sums.square().mean(1).sqrt(), width)
        dropped = max(dropped, root if layer > 0 else 0.0)
        ways = tuple((choices[i // len(beam.ways)], *beam.ways[i % len(beam.ways)]) for i in kept.tolist())
        beam = _Beam(ways, candidates[kept])
    return beam, dropped


@torch.no_grad()
def _signed_streams(network: Network, ends: Ends, signs: Signs) -> list[_Signed]:
    """At every block in the middle, in order."""
    weights = signs_of(ends.prefixes, signs[: ends.first]).to(ends.streams)
    before = torch.einsum("dp,p...->d...", weights.expand(len(signs[0]) if signs else 1, -1), ends.streams)
    found = []
    for layer in range(ends.first, ends.last):
        after, mixed = [], []
        for start in range(0, len(before), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            seen: list[Tensor] = []

            def keep(passing: Graded, pattern: Tensor, seen: list[Tensor] = seen, layer: int = layer) -> None:
                seen.append(passing.sums.parts[:, 0, 0])
                if layer + 1 == ends.last:
                    raise _EnoughError

            factors = signs[layer][some]
            graded = Graded.of(network.streams[layer], before[some, None, None], None, "none")
            signing = multiplied(lambda heads, factors=factors: factors, network)  # type: ignore[misc]
            with suppress(_EnoughError), watching(keep), watching(signing):  # of the last, what its heads mix will do
                after.append(network.block(layer, graded).parts[:, 0, 0])
            mixed.append(heads_apart(one_attention(seen, network, layer), network))
        found.append(_Signed(before, torch.cat(mixed)))
        before = torch.cat(after) if after else before
    return found


def _described(network: Network, ends: Ends, ways: list[tuple[int, ...]], adjoints: Tensor) -> Iterator[TopPath]:
    """Whole paths, whose suffixes behind the first blocks have these adjoints: pulled back to the tokens."""
    every = list(range(len(ways)))
    for layer in reversed(range(ends.first)):
        opened = Opened(network, layer)
        adjoints = opened.onwards(opened.halfway(adjoints), every, [way[layer] for way in ways])
    by_token = (adjoints * network.streams[0]).sum(-1)  # [path, batch, token]
    for way, tokens in zip(ways, by_token, strict=True):
        sequence, token = divmod(int(tokens.abs().argmax()), tokens.shape[1])
        heads = tuple((layer, choice - 1) for layer, choice in enumerate(way) if choice)
        yield TopPath(heads, float(tokens.sum()), sequence, token, float(tokens[sequence, token]))
