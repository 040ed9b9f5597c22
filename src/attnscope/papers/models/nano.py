"""A small readable transformer in which every part that the experiments change is a setting.

    config = Config(vocab_size=64, width=48, heads=2, layers=6, causal=True)
    model = Nano(config, seed=0)                    # or Nano(config, seed=0).double()
    logits = model(input_ids)                       # [batch, token, out]

A block computes, for each position of the norm (s is `skip`, b is `branch`, f is attention and then the MLP):

    pre    x <- s x + b f(norm(x))          and one more norm before the output
    post   x <- norm(s x + b f(x))          as in "Attention is all you need"
    none   x <- s x + b f(x)

`skip=0` removes the skip connections and `mlp=None` the MLPs; with both, and any norm, this is the self-attention
network whose rank collapses with depth (arXiv:2103.03404). Attention is a plain function of queries, keys and values
and can be replaced: `Nano(config, attention=my_function)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.variant import Variant
from attnscope.matrix.visibility import AttentionInputs

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
"""`attend(query, key, value, mask, scale) -> mixed`: all `[batch, head, token, dim]`, mask True for visible keys."""


def scaled_dot_product(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch head key dim"],
    value: Float[Tensor, "batch head key dim"],
    mask: Bool[Tensor, "#batch 1 #query key"] | None,
    scale: float,
) -> Float[Tensor, "batch head query dim"]:
    """Return softmax(scale q k^T) v, computed by torch's fused kernel."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def exchanged(variant: Variant, **own: Any) -> Attend:
    """Turn a variant of kind pattern or logits, with its settings, into an argument for `Nano(attention=...)`."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        mixed: Tensor = variant(AttentionInputs(query, key, value, mask, scale=scale), **own)
        return mixed

    return attend


class Attention(nn.Module):
    """Multi-head self-attention: four linear maps, and the function `attend` that mixes the values."""

    def __init__(self, width: int, heads: int, dim: int, biases: bool, attend: Attend = scaled_dot_product) -> None:
        super().__init__()
        self.heads, self.dim, self.attend = heads, dim, attend
        self.query = nn.Linear(width, heads * dim, bias=biases)
        self.key = nn.Linear(width, heads * dim, bias=biases)
        self.value = nn.Linear(width, heads * dim, bias=biases)
        self.output = nn.Linear(heads * dim, width, bias=biases)

    @property
    def scale(self) -> float:
        return float(self.dim**-0.5)

    def forward(
        self, stream: Float[Tensor, "batch token width"], mask: Bool[Tensor, "#batch 1 #query key"] | None = None
    ) -> Float[Tensor, "batch token width"]:
        query, key, value = (
            projection(stream).unflatten(-1, (self.heads, self.dim)).transpose(1, 2)  # [batch, head, token, dim]
            for projection in (self.query, self.key, self.value)
        )
        mixed = self.attend(query, key, value, mask, self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def norm_of(width: int, place: str, kind: str) -> nn.Module:
    if place == "none":
        return nn.Identity()
    return nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width, eps=1e-6)


def perceptron(inputs: int, hidden: int | None, outputs: int, activation: str, biases: bool) -> nn.Module:
    """Return two linear maps with an activation between them, or one linear map if `hidden` is None."""
    if hidden is None:
        return nn.Linear(inputs, outputs, bias=biases)
    gate = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}[activation]
    return nn.Sequential(nn.Linear(inputs, hidden, bias=biases), gate(), nn.Linear(hidden, outputs, bias=biases))


@dataclass(frozen=True)
class Config:
    """Sizes and parts of a nano model. Give either `vocab_size` (tokens) or `inputs` (vectors of that width)."""

    width: int
    heads: int
    layers: int
    vocab_size: int | None = None
    inputs: int | None = None
    inputs_hidden: int | None = None  # hidden units of the MLP that embeds vectors; None: a linear map
    out: int | None = None  # outputs per token; default: the size of the vocabulary
    head_width: int | None = None  # default: width // heads
    mlp: int | None = None  # hidden units; None: attention only
    norm: Literal["pre", "post", "none"] = "pre"
    norm_kind: Literal["layer", "rms"] = "layer"
    skip: float | int = 1.0  # factor on the skip connection past attention; booleans are allowed
    mlp_skip: float | int | None = None  # factor on the one past the MLP; default: `skip`
    branch: float | int = 1.0  # factor on the outputs of attention and MLP, 1/sqrt(layers) in arXiv:2206.03126
    positions: Literal["learned", "none"] = "learned"
    max_tokens: int = 256  # rows of the position table
    causal: bool = False
    activation: Literal["gelu", "relu", "silu"] = "gelu"
    biases: bool = True
    initial: float | None = None  # standard deviation of initial weights; default: 1/sqrt(fan-in)

    def __post_init__(self) -> None:
        if (self.vocab_size is None) == (self.inputs is None):
            raise RefusalError("A nano model reads tokens or vectors: give either vocab_size or inputs.")
        if self.vocab_size is None and self.out is None:
            raise RefusalError("A nano model that reads vectors needs its number of outputs: give out.")
        if self.head_width is None and self.width % self.heads:
            raise RefusalError(f"A width of {self.width} has no {self.heads} equal heads: give head_width as well.")
        for name in ("width", "heads", "layers", "vocab_size", "inputs", "out", "head_width", "mlp", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RefusalError(f"A nano model with {name}={value} has nothing to compute: give 1 or more.")

    @property
    def dim(self) -> int:
        """The width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def outputs(self) -> int:
        return self.out or self.vocab_size or 0

    @property
    def max_position_embeddings(self) -> int | None:
        """The length of the longest sequence, or None for any length; the name is that used by transformers."""
        return self.max_tokens if self.positions == "learned" else None


class Nano(nn.Module):
    """The model. Its weights depend only on `config` and `seed`; torch's global generator is not used."""

    def __init__(self, config: Config, seed: int = 0, attention: Attend = scaled_dot_product) -> None:
        super().__init__()
        self.config = config
        self.main_input_name = "input_ids" if config.inputs is None else "vectors"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if config.inputs is None:
                assert config.vocab_size is not None
                self.embedding: nn.Module = nn.Embedding(config.vocab_size, config.width)
            else:
                self.embedding = perceptron(
                    config.inputs, config.inputs_hidden, config.width, config.activation, config.biases
                )
            learned = config.positions == "learned"
            self.positions = nn.Embedding(config.max_tokens, config.width) if learned else None
            self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.layers))
            self.last_norm = (
                norm_of(config.width, config.norm, config.norm_kind) if config.norm == "pre" else nn.Identity()
            )
            self.output = nn.Linear(config.width, config.outputs, bias=config.biases)
            self.apply(self._initialise)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"] | None = None,
        vectors: Float[Tensor, "batch token inputs"] | None = None,
        attention_mask: Int[Tensor, "batch token"] | Bool[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch token out"]:
        """Return the logits of every token. `attention_mask` is 0 for padding, which is not attended to."""
        inputs = input_ids if self.config.inputs is None else vectors
        if inputs is None:
            raise RefusalError(f"This nano model reads {self.main_input_name}: give them, and nothing else.")
        stream = self.embedding(inputs)
        tokens = stream.shape[1]
        if self.positions is not None:
            if tokens > self.config.max_tokens:
                raise RefusalError(
                    f"This nano model has {self.config.max_tokens} positions, and the sequence has {tokens} tokens: "
                    "shorten it, or make the model with a larger max_tokens."
                )
            stream = stream + self.positions.weight[:tokens]
        mask = visible_keys(tokens, self.config.causal, attention_mask, stream.device)
        for block in self.blocks:
            stream = block(stream, mask)
        return self.output(self.last_norm(stream))  # type: ignore[no-any-return]

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            spread = self.config.initial
            nn.init.normal_(module.weight, std=module.in_features**-0.5 if spread is None else spread)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1.0 if self.config.initial is None else self.config.initial)


class Block(nn.Module):
    """Attention, then an optional MLP, each with a skip connection and a norm."""

    def __init__(self, config: Config, attention: Attend) -> None:
        super().__init__()
        self.place = config.norm
        self.branch = config.branch
        self.skip = float(config.skip)
        self.mlp_skip = self.skip if config.mlp_skip is None else float(config.mlp_skip)
        self.attention = Attention(config.width, config.heads, config.dim, config.biases, attention)
        self.attention_norm = norm_of(config.width, config.norm, config.norm_kind)
        self.mlp = self.mlp_norm = None
        if config.mlp is not None:
            self.mlp = perceptron(config.width, config.mlp, config.width, config.activation, config.biases)
            self.mlp_norm = norm_of(config.width, config.norm, config.norm_kind)

    def forward(
        self, stream: Float[Tensor, "batch token width"], mask: Bool[Tensor, "#batch 1 #query key"] | None = None
    ) -> Float[Tensor, "batch token width"]:
        read = self.attention_norm(stream) if self.place == "pre" else stream
        stream = self._joined(stream, self.attention(read, mask), self.skip, self.attention_norm)
        if self.mlp is None or self.mlp_norm is None:
            return stream
        read = self.mlp_norm(stream) if self.place == "pre" else stream
        return self._joined(stream, self.mlp(read), self.mlp_skip, self.mlp_norm)

    def _joined(self, stream: Tensor, write: Tensor, skip: float, norm: nn.Module) -> Tensor:
        write = write if self.branch == 1 else self.branch * write
        if skip:
            write = write + (stream if skip == 1 else skip * stream)
        return norm(write) if self.place == "post" else write


def visible_keys(
    tokens: int,
    causal: bool,
    real: Int[Tensor, "batch token"] | Bool[Tensor, "batch token"] | None,
    device: torch.device,
) -> Bool[Tensor, "#batch 1 #query key"] | None:
    """Return which keys each query may see: real tokens, and no later ones if `causal`. None means all keys."""
    mask = None if real is None or bool(real.all()) else real.bool()[:, None, None, :]
    if causal:
        past = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()[None, None]
        mask = past if mask is None else mask & past
        # Padding on the left would see no key, so its softmax would be NaN: let it see itself.
        blind = ~mask.any(-1, keepdim=True)
        mask = mask | (blind & torch.eye(tokens, dtype=torch.bool, device=device))
    return mask
