"""Decompose the attention logits of one block over everything that wrote into the stream before it.

The stream that enters block B is a sum over sources: the embedding, the write of every head and every MLP of the blocks
before B, and constants (biases, shifts of norms). With denominators of norms frozen, queries and keys are linear in
the stream, so with n_s for the part of source s, rotations R and projections W

    s_ij = scale (R_i W_q n_i) . (R_j W_k n_j) = sum over sources a, b of  scale q_i[a] . k_j[b],

a table of query-side sources by key-side sources. Nothing here knows an architecture: the model's own code computes
queries and keys on graded streams, one part for each source.

A block adds sources and changes old ones only along its skip. So it runs on a stream with the parts

    the stream, constants, and one empty part for each head and MLP,

and at every head and MLP the whole output is moved to that part. What remains of the first part has passed only the
skip. If that is the stream itself (pre-norm), older sources stay as they are. If not (post-norm), they are run through
the block with all heads and MLPs silenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.network import Network, edges_of, relative_difference
from attnscope.pathways.sums import LEADING, Sums, split_axis

STREAM, CONSTANTS, OWN = 0, 1, 2  # parts of a block's run: the stream, constants, then its heads and its MLP
AT_ONCE = 2**24  # numbers of streams that run through a block together
ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-3}  # relative difference of the sum of sources from the stream


@dataclass(frozen=True)
class Source:
    """Something that writes into the stream. `block` and `head` are None where there is none."""

    kind: Literal["embedding", "biases", "head", "mlp"]
    block: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class Sides:
    """Queries and keys of one head, with and without their decomposition over sources."""

    query: Float[Tensor, "token dim"]
    key: Float[Tensor, "token dim"]
    query_parts: Float[Tensor, "source token dim"]
    key_parts: Float[Tensor, "source token dim"]


@dataclass(frozen=True)
class Entering:
    """The stream that enters a block, as a sum of parts. Source 0 is the embedding, source 1 the constants."""

    network: Network
    block: int
    sources: tuple[Source, ...]
    parts: Float[Tensor, "source batch token width"]

    @property
    def stream(self) -> Float[Tensor, "batch token width"]:
        return self.network.streams[self.block]

    @property
    def apart(self) -> float:
        """The relative difference between the sum of all parts and the stream."""
        return relative_difference(self.parts.sum(0), self.stream)

    @torch.no_grad()
    def sides(self, head: int) -> Sides:
        """Return queries and keys of a head, decomposed. Constants of the block itself join source 1."""
        pieces = []
        for begin, some in _groups(self.parts):
            own = CONSTANTS - begin if begin <= CONSTANTS < begin + len(some) else None
            stream = Graded.of(self.stream, some[:, None, None].clone(), own, "none")
            pieces.append(_read(lambda stream=stream: self.network.block(self.block, stream), self._name, head))  # type: ignore[misc]
        parts = {name: torch.cat([getattr(piece, name) for piece in pieces]) for name in ("query_parts", "key_parts")}
        return replace(pieces[0], **parts)

    @torch.no_grad()
    def without(self, source: int, token: int, head: int) -> Sides:
        """Return queries and keys after one source is removed from one token. Norms are computed anew."""
        stream = self.stream.clone()
        stream[:, token] -= self.parts[source][:, token]
        return _read(lambda: self.network.blocks[self.block](Graded.entering(stream, "none")), self._name, head)

    @property
    def _name(self) -> str:
        return f"Block {self.block} of {self.network.name}"


@torch.no_grad()
def entering(network: Network, block: int, advance: Advance = silent) -> Entering:
    """Return the stream that enters `block` as a sum over sources; refuse if the sum is not the stream."""
    first = network.streams[0]
    sources: tuple[Source, ...] = (Source("embedding"), Source("biases"))
    parts = torch.stack([first, torch.zeros_like(first)])
    for layer in range(block):
        own, written = _written(network, layer)
        if not torch.equal(written[STREAM], network.streams[layer]):
            parts = torch.cat([_through_skip(network, layer, some) for _, some in _groups(parts)])
        parts[CONSTANTS] += written[CONSTANTS]
        sources, parts = (*sources, *own), torch.cat([parts, written[OWN:]])
        advance("sources", layer + 1, block)
    found = Entering(network, block, sources, parts)
    if not found.apart <= ALLOWED.get(first.dtype, 0.0):
        raise RefusalError(
            f"The writes of heads and MLPs before block {block} of {network.name} differ from its stream by "
            f"{found.apart:.1e} (relative), so its logits cannot be decomposed: choose another model."
        )
    return found


def _written(network: Network, layer: int) -> tuple[tuple[Source, ...], Float[Tensor, "part batch token width"]]:
    """Run a block and return what its skip, its constants, each of its heads and its MLP write."""
    heads = edges_of(network, layer).heads
    stream = network.streams[layer]
    names = (*(Source("head", layer, head) for head in range(heads)), Source("mlp", layer))
    parts = stream.new_zeros(OWN + len(names), 1, 1, *stream.shape)
    parts[STREAM] = stream

    def by_head(mixed: Tensor) -> Tensor:
        """Return the output of every head as a part of its own: [head, batch * head or batch, head, ...]."""
        apart = mixed if mixed.ndim == 4 else split_axis(mixed, 0, stream.shape[0], -1)
        own = torch.eye(heads, dtype=mixed.dtype, device=mixed.device)[:, None, :, None, None] * apart
        return own.reshape(heads, *mixed.shape)

    def attention(mixed: Graded, pattern: Tensor) -> Graded:
        moved = mixed.value.new_zeros(len(parts), 1, 1, *mixed.value.shape)
        moved[OWN : OWN + heads, 0, 0] = by_head(mixed.value)
        return mixed.made(mixed.value, lambda: Sums(moved))

    def mlp(activated: Graded, gate: Tensor) -> Graded | None:
        if not activated.sums.parts[STREAM].any():
            return None  # a gate on the output of heads, or a later layer of the same MLP: it keeps its source
        moved = activated.value.new_zeros(len(parts), 1, 1, *activated.value.shape)
        moved[-1] = activated.value
        return activated.made(activated.value, lambda: Sums(moved))

    with watching(attention), watching(mlp, "mlp"):
        left = network.block(layer, Graded.of(stream, parts, CONSTANTS, "none"))
    return names, left.parts[:, 0, 0]


def _through_skip(
    network: Network, layer: int, parts: Float[Tensor, "source batch token width"]
) -> Float[Tensor, "source batch token width"]:
    """Carry older sources through a block whose heads and MLPs are silenced."""

    def silenced(passing: Graded, factor: Tensor) -> Graded:
        nothing = passing.value.new_zeros(()).expand(len(parts), *[1] * (LEADING - 1), *passing.value.shape)
        return passing.made(passing.value, lambda: Sums(nothing))

    with watching(silenced), watching(silenced, "mlp"):
        return network.block(layer, Graded.of(network.streams[layer], parts[:, None, None], None, "none")).parts[
            :, 0, 0
        ]


def _groups(parts: Float[Tensor, "source batch token width"]) -> Iterator[tuple[int, Tensor]]:
    """Yield groups of sources that fit into memory together, with the number of their first one."""
    size = max(2, AT_ONCE // max(parts[0].numel(), 1))
    for begin in range(0, len(parts), size):
        yield begin, parts[begin : begin + size]


class _QueriesAndKeys(Exception):  # noqa: N818 - it ends the run of a block and is no error
    """Carries queries and keys out of a block, so that the rest of the block does not run."""

    def __init__(self, query: Graded, key: Graded) -> None:
        super().__init__()
        self.query, self.key = query, key


@contextmanager
def _ending_at_logits() -> Iterator[None]:
    def end(query: Graded, key: Tensor) -> None:
        assert isinstance(key, Graded)
        raise _QueriesAndKeys(query, key)

    with watching(end, "logits"):
        yield


def _read(run: Callable[[], object], name: str, head: int) -> Sides:
    """Run a block up to its attention, and return the queries and keys of one head."""
    try:
        with _ending_at_logits():
            run()
    except _QueriesAndKeys as seen:
        query, key = seen.query, seen.key
    else:
        raise RefusalError(
            f"{name} does not compute its logits as one product of queries and keys that both come from its stream, so "
            "they cannot be decomposed: choose another block or model."
        )
    heads, shared = (side.value.shape[-3] for side in (query, key))  # a batch of one may be merged with the heads
    kv = head // (heads // shared)
    return Sides(
        query.value[..., head, :, :].reshape(query.value.shape[-2:]),
        key.value[..., kv, :, :].reshape(key.value.shape[-2:]),
        *(side.parts[..., own, :, :].reshape(-1, *side.value.shape[-2:]) for side, own in ((query, head), (key, kv))),
    )
