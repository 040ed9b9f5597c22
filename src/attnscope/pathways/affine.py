"""The whole network at one input as a single affine map, out = T x + b (arXiv:2601.17958), without ever writing T.

Freeze, for one input, every attention pattern A_h, every norm's deviation and every ratio phi(z)/z of an activation.
With X as a vector, token after token, (A (x) M) vec(X) = vec(A X M^T), and every part of a block is a matrix:

    attention   sum_h A_h (x) (W_V^h W_O^h)^T          tokens are mixed by A_h, channels by the head's weights
    norm        diag(1/sigma_i) (x) diag(gamma)(I - 11^T/d)
    MLP         blockdiag_i (W_1 diag(phi(z_i)/z_i) W_2)^T
    skip        I

Their product over blocks is T, of (n d)^2 entries; biases and shifts of norms, carried through what follows them, are
b. T is no Jacobian: a derivative would also move patterns, deviations and ratios (`operator_jacobian`).

Nothing here linearises: the frozen network of paths already runs a model's own code on parts of its stream. A product
T x is one run of it on other parts, with constants dropped. A product T^T y is the derivative of that run, taken block
by block from the last: each block's run is linear in its parts, so where it is differentiated does not matter, and one
graph serves any number of y.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.pathways.graded import Graded
from attnscope.pathways.network import Network

ROOM = 2**25  # numbers that all products made at once may take together in one block

Streams = Float[Tensor, "many token width"]
Answers = Float[Tensor, "many *leaves"]


@dataclass(frozen=True, eq=False)
class Affine:
    """Blocks `first` up to before `last` of a network, and what follows the last of them where `tail` is set."""

    network: Network
    first: int
    last: int
    tail: bool

    @property
    def enters(self) -> Float[Tensor, "token width"]:
        """The stream that enters, as the model had it."""
        return self.network.streams[self.first].flatten(0, -2)

    @property
    def leaves(self) -> Float[Tensor, "*leaves"]:
        """What the model itself makes of it: states or logits of tokens, or one row of classes."""
        output = self.network.output if self.tail else self.network.streams[self.last]
        return output.flatten(0, -2) if output.ndim > 2 or len(output) > 1 else output[0]

    @property
    def at_once(self) -> int:
        """How many products fit beside each other: a block is about eight streams wide inside."""
        return max(1, ROOM // max(8 * self.enters.numel(), self.leaves.numel()))

    @torch.no_grad()
    def times(self, vectors: Streams) -> Answers:
        """T x for every x."""
        return torch.cat([self._times(some) for some in torch.split(vectors, self.at_once)])

    def _times(self, vectors: Streams) -> Answers:
        # Some models keep tokens before the batch, which is one sequence: only the shape differs.
        parts = vectors.reshape(len(vectors), 1, 1, *self.network.streams[self.first].shape)
        for piece in self._pieces():
            parts = self._through(piece, parts, None).parts
        return parts.reshape(len(vectors), *self.leaves.shape)

    def transposed_times(self, answers: Answers) -> Streams:
        """T^T y for every y."""
        return torch.cat([self._transposed_times(some) for some in torch.split(answers, self.at_once)])

    def _transposed_times(self, answers: Answers) -> Streams:
        many = len(answers)
        for piece in reversed(list(self._pieces())):
            answers = self._back(piece, answers)
        return answers.reshape(many, *self.enters.shape)

    def _back(self, piece: int, answers: Float[Tensor, " many *left"]) -> Float[Tensor, " many *entered"]:
        """Through one block: autograd is given all y together, and runs back through one graph for them."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = torch.zeros_like(self.network.streams[piece], requires_grad=True)
            left = self._through(piece, leaf[None, None, None], None).parts[0, 0, 0]
        given = answers.reshape(len(answers), *left.shape).to(left)
        back: Tensor = torch.autograd.grad(left, leaf, given, is_grads_batched=True)[0]
        return back

    @cached_property
    def offset(self) -> Float[Tensor, "*leaves"]:
        """b: what constants add."""
        with torch.no_grad():
            parts = torch.zeros_like(self.network.streams[self.first])[None, None, None]
            for piece in self._pieces():
                parts = self._through(piece, parts, 0).parts.clone()  # constants are added in place
        return parts.reshape(self.leaves.shape)

    def _pieces(self) -> Iterator[int]:
        """Blocks by number; the tail is one more than the last of all."""
        yield from range(self.first, self.last)
        if self.tail:
            yield self.network.layers

    def _through(self, piece: int, parts: Tensor, constants: int | None) -> Graded:
        entering = Graded.of(self.network.streams[piece], parts, constants, "none")
        return self.network.finish(entering) if piece == self.network.layers else self.network.block(piece, entering)
