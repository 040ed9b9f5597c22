"""A small transformer written out, and all its paths one by one: the reference for the graded sums.

`Explicit` is an ordinary module. `paths(model, x)` does not use graded tensors: it freezes the module's patterns,
denominators and gates by its own forward pass and multiplies, for every path, the matrices on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.pathways.network import Network

Mix = Literal["sdpa", "matmul", "bmm", "einsum"]
Norm = Literal["pre", "post", "none"]


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    norm: Norm
    width: int = 4
    tokens: int = 3
    mlp: int | None = None
    skip: float = 0.8
    activation: str = "gelu"
    mix: Mix = "matmul"
    biases: bool = True


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, d, b = shape, shape.width, shape.biases
        inner = shape.heads * 3  # heads are 3 wide, so that no two shapes agree by accident
        self.q, self.k, self.v = (nn.Linear(d, inner, bias=b) for _ in range(3))
        self.o = nn.Linear(inner, d, bias=b)
        self.norm = nn.Identity() if shape.norm == "none" else nn.LayerNorm(d)
        self.second = nn.Identity() if shape.norm == "none" else nn.LayerNorm(d)
        self.up = None if shape.mlp is None else nn.Linear(d, shape.mlp, bias=b)
        self.down = None if shape.mlp is None else nn.Linear(shape.mlp, d, bias=b)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wrap(x, self.attend, self.norm)
        return x if self.up is None else self.wrap(x, self.perceive, self.second)

    def wrap(self, x: Tensor, write: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        if self.shape.norm == "pre":
            return self.shape.skip * x + write(norm(x))
        return norm(self.shape.skip * x + write(x))

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (p(x).view(batch, tokens, self.shape.heads, 3).transpose(1, 2) for p in (self.q, self.k, self.v))
        if self.shape.mix == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            logits = (q @ k.transpose(-1, -2)) * 3**-0.5
            seen = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
            pattern = logits.masked_fill(~seen, -torch.inf).softmax(-1)
            if self.shape.mix == "matmul":
                mixed = pattern @ v
            elif self.shape.mix == "bmm":
                mixed = torch.bmm(pattern.flatten(0, 1), v.flatten(0, 1)).view(batch, self.shape.heads, tokens, 3)
            else:
                mixed = torch.einsum("bhqk,kbhc->qbhc", pattern, v.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)
        return self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))

    def perceive(self, x: Tensor) -> Tensor:
        assert self.up is not None
        assert self.down is not None
        return self.down(getattr(F, self.shape.activation)(self.up(x)))


class Explicit(nn.Module):
    """Blocks, and a linear map to five classes."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.shape = shape
            self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
            self.out = nn.Linear(shape.width, 5)
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=0.6)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.out(x)

    def example(self, seed: int = 1, batch: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, self.shape.tokens, self.shape.width, generator=generator, dtype=torch.float64)


@torch.no_grad()
def network(model: Explicit, x: Tensor) -> Network:
    streams = [x]
    for block in model.blocks:
        streams.append(block(streams[-1]))
    return Network("Explicit", tuple(streams), tuple(model.blocks), model.out, model.out(streams[-1]))


@dataclass(frozen=True)
class Choice:
    """One way through a stage: what it does to a stream, and which player it meets."""

    name: str  # "skip", "h0", "h1", ..., or "mlp"
    apply: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Stage:
    choices: tuple[Choice, ...]
    born: tuple[
        tuple[str, np.ndarray], ...
    ]  # constants that begin here, and the player they have met when they leave the stage


@dataclass(frozen=True)
class Path:
    """`names[i]` is the player met at stage i; stages before the path began are missing."""

    source: int
    names: tuple[str, ...]
    value: np.ndarray

    @property
    def attention(self) -> int:
        return sum(name.startswith("h") for name in self.names)

    @property
    def mlp(self) -> int:
        return self.names.count("mlp")


def paths(model: Explicit, x: Tensor) -> Iterator[Path]:
    """Every path of the frozen network, from the input (source 0) and from every constant (source 1)."""
    stages = _stages(model, x)
    yield from _continued(stages, 0, Path(0, (), x.numpy()))
    for index, stage in enumerate(stages):
        for name, constant in stage.born:
            yield from _continued(stages, index + 1, Path(1, (name,), constant))


def _continued(stages: list[Stage], at: int, path: Path) -> Iterator[Path]:
    if at == len(stages):
        yield path
        return
    for choice in stages[at].choices:
        yield from _continued(stages, at + 1, Path(path.source, (*path.names, choice.name), choice.apply(path.value)))


@torch.no_grad()
def _stages(model: Explicit, x: Tensor) -> list[Stage]:
    stages = []
    for block in model.blocks:
        assert isinstance(block, Block)
        stages.append(_attention_stage(block, x))
        x = block.wrap(x, block.attend, block.norm)
        if block.up is not None:
            stages.append(_mlp_stage(block, x))
            x = block.wrap(x, block.perceive, block.second)
    return stages


Map = Callable[[np.ndarray], np.ndarray]


def _n(tensor: Any) -> np.ndarray:
    return tensor.detach().numpy()


def _centred(norm: nn.LayerNorm, at: Tensor) -> tuple[Map, np.ndarray]:
    """The norm with its denominator frozen, and its shift."""
    gain = _n(norm.weight / (at.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt())
    return lambda y: (y - y.mean(-1, keepdims=True)) * gain, _n(norm.bias.expand(at.shape))


def _around(
    block: Block,
    norm: Any,
    at: tuple[Tensor, Tensor],
    parts: list[tuple[str, Map]],
    inner: list[tuple[str, np.ndarray]],
    last: np.ndarray | None,
) -> Stage:
    """A stage: skip and branches `parts`, with the norm before or behind it (`at`: what it sees in either case).
    Constants in `inner` have met their player, `last` has met none."""
    before: Map = lambda y: y  # noqa: E731
    behind, born, shift = before, list(inner), None
    if last is not None:
        born.append(("none", last))
    if block.shape.norm == "pre":
        before, entering = _centred(norm, at[0])
        born += [(name, part(entering)) for name, part in parts]
    if block.shape.norm == "post":
        behind, shift = _centred(norm, at[1])
    born = [(name, behind(constant)) for name, constant in born]
    if shift is not None:
        born.append(("none", shift))
    skip = block.shape.skip

    def through(part: Map) -> Map:
        return lambda y: behind(part(before(y)))

    choices = [Choice("skip", lambda y: behind(skip * y)), *(Choice(name, through(part)) for name, part in parts)]
    return Stage(tuple(choices), tuple(born))


def _between(a: np.ndarray, w: np.ndarray) -> Map:
    return lambda y: a @ y @ w


def _attention_stage(block: Block, x: Tensor) -> Stage:
    read = block.norm(x) if block.shape.norm == "pre" else x
    tokens = x.shape[1]
    parts: list[tuple[str, Map]] = []
    inner: list[tuple[str, np.ndarray]] = []
    for head in range(block.shape.heads):
        mine = slice(3 * head, 3 * head + 3)
        logits = block.q(read)[..., mine] @ block.k(read)[..., mine].mT / 3**0.5
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
        a = _n(logits.masked_fill(~seen, -torch.inf).softmax(-1))
        w = _n(block.v.weight[mine].T @ block.o.weight[:, mine].T)
        parts.append((f"h{head}", _between(a, w)))
        if block.v.bias is not None:
            inner.append((f"h{head}", a @ _n((block.v.bias[mine] @ block.o.weight[:, mine].T).expand(x.shape))))
    last = None if block.o.bias is None else _n(block.o.bias.expand(x.shape))
    return _around(block, block.norm, (x, block.shape.skip * x + block.attend(x)), parts, inner, last)


def _mlp_stage(block: Block, x: Tensor) -> Stage:
    assert block.up is not None
    assert block.down is not None
    read = block.second(x) if block.shape.norm == "pre" else x
    z = block.up(read)
    gate = _n(getattr(F, block.shape.activation)(z) / z)
    up, down = _n(block.up.weight.T), _n(block.down.weight.T)
    inner = [] if block.up.bias is None else [("mlp", (gate * _n(block.up.bias)) @ down)]
    last = None if block.down.bias is None else _n(block.down.bias.expand(x.shape))
    parts: list[tuple[str, Map]] = [("mlp", lambda y: (gate * (y @ up)) @ down)]
    return _around(block, block.second, (x, block.shape.skip * x + block.perceive(x)), parts, inner, last)
