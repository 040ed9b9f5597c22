"""A decoder like pocket (RMSNorm, rotary positions, SwiGLU, tied embeddings) with parts that are replaced by name.

    model = Decoder(Shape(vocabulary=70, width=64, heads=4, layers=4, hidden=160))
    model = Decoder(replace(shape, pattern="softpick"))                     # any causal variant of kind pattern
    model = Decoder(replace(shape, parts=("sandwich_norm", "qk_norm")))     # two parts from arXiv:2603.05498
    seen = model.observe(ids)                                               # patterns, and the stream after every write

A block computes x <- x + f(norm(x)), where f is attention and then the MLP. `sandwich_norm` also normalises the output
of f, `dynamic_tanh` replaces every norm by a bounded function of each coordinate, and `conditional_gate` multiplies the
output of attention by a gate computed from its input. Variants are the functions in `attnscope.variants`; their tensors
are parameters of the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from attnscope.core.variant import Size
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs

SOFTMAX = "softmax"
PARTS = ("sandwich_norm", "qk_norm", "dynamic_tanh", "conditional_gate")
INITIAL = 0.02  # standard deviation of the initial weights, as in Llama


@dataclass(frozen=True)
class Shape:
    """Sizes and parts of a decoder. `pattern` is `softmax` or a variant's name; `parts` are names in `PARTS`."""

    vocabulary: int
    width: int = 64
    heads: int = 4
    layers: int = 4
    hidden: int = 160
    head_width: int | None = None  # default: width // heads
    pattern: str = SOFTMAX
    parts: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()  # settings of the pattern, such as (("window", 8),)
    starts: tuple[tuple[str, float], ...] = ()  # initial values of the pattern's tensors, instead of those on its card
    base: float = 10000.0  # base of the rotary angles

    def __post_init__(self) -> None:
        if self.dim % 2:
            raise RefusalError(f"Rotary positions turn pairs of coordinates: give an even head width, not {self.dim}.")
        if strange := set(self.parts) - set(PARTS):
            raise RefusalError(f"A decoder has no part called {sorted(strange)[0]}: it has {', '.join(PARTS)}.")
        if self.pattern != SOFTMAX and "qk_norm" in self.parts:
            raise RefusalError("qk_norm has its own softmax: do not set pattern together with it.")

    @property
    def dim(self) -> int:
        return self.head_width or self.width // self.heads


@dataclass(frozen=True)
class Seen:
    """A recorded forward pass: patterns `[batch, head, query, key]`, the stream after each half block, and logits."""

    patterns: tuple[Tensor | None, ...]  # None for a block whose columns are not tokens
    streams: tuple[Float[Tensor, "batch token width"], ...]  # the embedding, then two per block
    logits: Float[Tensor, "batch token vocabulary"]


class Exchanged(nn.Module):
    """A variant and its tensors: those drawn at random stay fixed, the others are trained."""

    def __init__(self, name: str, size: Size, seed: int, shape: Shape | None = None) -> None:
        super().__init__()
        self.variant = variants()[name]
        self.settings = {} if shape is None else dict(shape.settings)
        starts = {} if shape is None else dict(shape.starts)
        drawn = {*self.variant.card.drawn, *(f"{k}_{one}" for k, v in variants().items() for one in v.card.drawn)}
        tensors = self.variant.start(size, **({"seed": seed} if name == "performer" else {}))
        for own, tensor in tensors.items():
            if own in starts:
                tensor.fill_(starts[own])
            if own in drawn:
                self.register_buffer(own, tensor)
            else:
                self.register_parameter(own, nn.Parameter(tensor))

    def own(self) -> dict[str, Any]:
        return {**self._parameters, **self._buffers, **self.settings}

    def forward(self, *inputs: Tensor | AttentionInputs) -> Tensor:
        output: Tensor = self.variant(*inputs, **self.own())
        return output


class Norm(nn.Module):
    """RMSNorm, or `dynamic_tanh` if that is one of the parts."""

    def __init__(self, shape: Shape, size: Size, seed: int) -> None:
        super().__init__()
        tanh = "dynamic_tanh" in shape.parts
        self.of = Exchanged("dynamic_tanh", size, seed) if tanh else nn.RMSNorm(shape.width, eps=1e-6)

    def forward(self, stream: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        normed: Tensor = self.of(stream)
        return normed


class Attention(nn.Module):
    def __init__(self, shape: Shape, size: Size, seed: int) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.heads * shape.dim
        self.query, self.key, self.value = (nn.Linear(shape.width, inner, bias=False) for _ in range(3))
        self.output = nn.Linear(inner, shape.width, bias=False)
        core = "qk_norm" if "qk_norm" in shape.parts else shape.pattern
        self.core = None if core == SOFTMAX else Exchanged(core, size, seed, shape if core == shape.pattern else None)

    def forward(self, read: Tensor, angles: tuple[Tensor, Tensor]) -> Float[Tensor, "batch token width"]:
        attend = plain_attention if self.core is None else self.core
        mixed = attend(self._projected(read, angles))
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def pattern(self, read: Tensor, angles: tuple[Tensor, Tensor]) -> Float[Tensor, "batch head query key"] | None:
        """Return the attention weights, or None if columns are not tokens or the variant has no pattern."""
        inputs = self._projected(read, angles)
        if self.core is None:
            return softmax_pattern(inputs)
        variant = self.core.variant
        if variant.pattern is None or not variant.card.keys_are_tokens:
            return None
        written: Tensor = variant.pattern(inputs, **self.core.own())
        return written

    def _projected(self, read: Tensor, angles: tuple[Tensor, Tensor]) -> AttentionInputs:
        query, key, value = (
            linear(read).unflatten(-1, (self.shape.heads, self.shape.dim)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        query, key, scale = rotated(query, angles), rotated(key, angles), float(self.shape.dim**-0.5)
        return AttentionInputs(query, key, value, causal=True, scale=scale)


class Block(nn.Module):
    def __init__(self, shape: Shape, size: Size, seed: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = Norm(shape, size, seed), Norm(shape, size, seed)
        self.attention = Attention(shape, size, seed)
        self.gate, self.up = (nn.Linear(shape.width, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)
        behind = "sandwich_norm" in shape.parts
        self.behind = nn.ModuleList(Exchanged("sandwich_norm", size, seed) for _ in range(2)) if behind else None
        conditional = "conditional_gate" in shape.parts
        self.conditional = Exchanged("conditional_gate", size, seed) if conditional else None

    def attend(self, stream: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        read = self.attention_norm(stream)
        write = self.attention(read, angles)
        if self.conditional is not None:
            write = self.conditional(write, read)
        joined: Tensor = stream + (write if self.behind is None else self.behind[0](write))
        return joined

    def transform(self, stream: Tensor) -> Tensor:
        """Add the output of the MLP, W_down (silu(W_gate x) * W_up x) with x = norm(stream), to the stream."""
        read = self.mlp_norm(stream)
        write = self.down(F.silu(self.gate(read)) * self.up(read))
        joined: Tensor = stream + (write if self.behind is None else self.behind[1](write))
        return joined


class Decoder(nn.Module):
    """The model. Its weights depend only on `shape` and `seed`; torch's global generator is not used."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            self.blocks = nn.ModuleList(
                Block(shape, Size(shape.heads, shape.dim, shape.width, layers=shape.layers, layer=layer), seed + layer)
                for layer in range(1, shape.layers + 1)
            )
            self.last_norm = Norm(shape, Size(shape.heads, shape.dim, shape.width), seed)
            for name, module in self.named_modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    # Scale output weights so that the sum of all writes does not grow with the number of blocks.
                    writes = name.endswith(("attention.output", "down"))
                    nn.init.normal_(module.weight, std=INITIAL * ((2 * shape.layers) ** -0.5 if writes else 1.0))

    def forward(self, ids: Int[Tensor, "batch token"]) -> Float[Tensor, "batch token vocabulary"]:
        stream, angles = self._start(ids)
        for block in self.blocks:
            assert isinstance(block, Block)
            stream = block.transform(block.attend(stream, angles))
        return F.linear(self.last_norm(stream), self.embedding.weight)

    @torch.no_grad()
    def observe(self, ids: Int[Tensor, "batch token"]) -> Seen:
        stream, angles = self._start(ids)
        patterns: list[Tensor | None] = []
        streams = [stream]
        for block in self.blocks:
            assert isinstance(block, Block)
            patterns.append(block.attention.pattern(block.attention_norm(stream), angles))
            middle = block.attend(stream, angles)
            stream = block.transform(middle)
            streams += [middle, stream]
        return Seen(tuple(patterns), tuple(streams), F.linear(self.last_norm(stream), self.embedding.weight))

    def _start(self, ids: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        stream = self.embedding(ids)
        if "dynamic_tanh" in self.shape.parts:
            # Without a norm a small embedding stays small: arXiv:2503.10622 multiplies it by sqrt(width).
            stream = stream * self.shape.width**0.5
        return stream, rotary_angles(ids.shape[1], self.shape.dim, self.shape.base, stream.dtype)


def rotary_angles(tokens: int, dim: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosine and sine of position * base^(-2i/dim) for each pair i of coordinates (arXiv:2104.09864)."""
    speed = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * speed
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotated(
    heads: Float[Tensor, "batch head token dim"], angles: tuple[Tensor, Tensor]
) -> Float[Tensor, "batch head token dim"]:
    """Rotate each pair of coordinates (i, i + dim/2) by its angle."""
    cosine, sine = angles
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
