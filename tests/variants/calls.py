"""Inputs of variants for tests: small heads with numbers exact in bfloat16, masks, and trained tensors off their
start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from attnscope.core.registry import variants
from attnscope.core.variant import Size, Variant
from attnscope.matrix.visibility import AttentionInputs, mix

BATCH, HEADS, TOKENS, DIM, WIDTH, LAYERS = 2, 4, 21, 6, 10, 3
SIZE = Size(heads=HEADS, dim=DIM, width=WIDTH, layers=LAYERS, layer=3)
SCALE = 0.4
# Settings that have an effect in a short sequence.
SETTINGS: dict[str, dict[str, Any]] = {
    "local": {"window": 3},
    "compressed": {"stride": 3},
    "mixed_heads": {"local_window": 3, "compressed_stride": 3},
    "layer_scaling": {"layer": 3},
    "qk_clip": {"threshold": 2.0},
}
RULE = ("visible", "causal", "scale")
MASKS = ("none", "causal", "padding", "causal and padding", "of each query")


def noise(seed: int, *shape: int) -> Tensor:
    """Return noise that is exact in bfloat16, so that inputs are equal in every dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().double()


def attending() -> dict[str, Variant]:
    """Return the variants that are called with queries, keys and values."""
    return {name: one for name, one in variants().items() if one.card.kind in ("pattern", "logits")}


@dataclass(frozen=True)
class Call:
    """The inputs of a variant by name, its own tensors, and the settings of the call."""

    one: Variant
    given: Mapping[str, Any]
    own: Mapping[str, Tensor]
    more: Mapping[str, Any]

    def __call__(self) -> Tensor:
        answer: Tensor = self.one(*self.positional, **self.own, **self.keywords)
        return answer

    @property
    def inputs(self) -> AttentionInputs:
        """What a variant of kind pattern or logits is called with."""
        return AttentionInputs(**self.given, **{name: self.more[name] for name in RULE})

    @property
    def positional(self) -> tuple[Any, ...]:
        return (self.inputs,) if "query" in self.given else tuple(self.given.values())

    @property
    def keywords(self) -> dict[str, Any]:
        return {name: value for name, value in self.more.items() if "query" not in self.given or name not in RULE}

    def slow(self) -> Tensor:
        if self.one.slow is not None:
            answer: Tensor = self.one.slow(self.inputs, **self.own, **self.keywords)
            return answer
        return mix(self.pattern(), self.given["value"])

    def pattern(self) -> Tensor:
        assert self.one.pattern is not None
        answer: Tensor = self.one.pattern(self.inputs, **self.own, **self.keywords)
        return answer

    def of(self, dtype: torch.dtype) -> Call:
        return self.each(lambda _, tensor: tensor.to(dtype, copy=True))

    def each(self, change: Callable[[int, Tensor], Tensor]) -> Call:
        """Change every tensor; `change` gets its number too."""
        number = count()

        def changed(thing: Any) -> Any:
            if isinstance(thing, dict):
                return {name: changed(one) for name, one in thing.items()}
            floats = isinstance(thing, Tensor) and thing.is_floating_point()
            return change(next(number), thing) if floats else thing

        return Call(self.one, changed(dict(self.given)), changed(dict(self.own)), changed(dict(self.more)))

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that a gradient may reach."""
        for thing in self.given.values():
            yield from thing.values() if isinstance(thing, dict) else (thing,)
        yield from self.own.values()


def mask_of(name: str, tokens: int = TOKENS) -> dict[str, Any]:
    """Return `visible` and `causal`. Padding is on the right in one sequence and on the left in the other."""
    real = torch.ones(BATCH, 1, 1, tokens, dtype=torch.bool)
    real[0, ..., -4:] = False
    real[1, ..., :5] = False
    place = torch.arange(tokens)
    near = ((place[:, None] * 7 + place * 3) % 4 != 0) | (place[:, None] == place)
    visible = {"padding": real, "causal and padding": real, "of each query": near[None, None]}.get(name)
    return {"visible": visible, "causal": name.startswith("causal")}


def started(one: Variant, given: Mapping[str, Any], size: Size = SIZE) -> dict[str, Tensor]:
    begun = one.start(given["weights"]) if one.card.kind == "weights" and one.card.parameters else one.start(size)
    return {name: tensor.double() for name, tensor in begun.items()}


def call_of(
    one: Variant, mask: str = "none", *, size: Size = SIZE, tokens: int = TOKENS, moved: bool = True, keys: int = 0
) -> Call:
    """Return a call in float64. If `moved`, trained tensors differ from their start by amounts exact in bfloat16."""
    heads = (BATCH, size.heads, tokens, size.dim)
    shared = (BATCH, size.value_heads, keys or tokens, size.dim)
    side = size.heads * size.dim
    known = {
        "query": noise(0, *heads),
        "key": noise(1, *shared),
        "value": noise(2, *shared) if one.card.kind in ("pattern", "logits") else noise(2, *shared).transpose(1, 2),
        "first_value": noise(3, *shared).transpose(1, 2),
        "mixed": noise(4, *heads).transpose(1, 2),
        "stream": noise(5, BATCH, tokens, size.width),
        "write": noise(6, BATCH, tokens, size.width),
        "normed": noise(7, BATCH, tokens, size.width),
        "streams": noise(8, size.layers, BATCH, tokens, size.width),
        "weights": {"query_weight": noise(9, side, size.width), "key_weight": noise(10, side, size.width)},
    }
    given = {name: known[name] for name in one.card.takes}
    own = started(one, given, size)
    if moved:
        for seed, name in enumerate(own):
            if name not in one.card.drawn and not name.endswith("_projection"):
                own[name] = own[name] + 0.1 + 0.3 * noise(40 + seed, *own[name].shape).abs().clamp_max(1.0)
        own = {name: tensor.bfloat16().double() for name, tensor in own.items()}
    more: dict[str, Any] = dict(SETTINGS.get(one.card.name, {}))
    if one.card.kind in ("pattern", "logits"):
        more |= {**mask_of(mask, keys or tokens), "scale": SCALE}
    elif one.card.name == "contra_norm":
        more |= mask_of(mask, tokens)
    elif one.card.name == "qk_clip":
        more |= {"max_logit": torch.tensor([1.0, 3.0, 9.0, 0.5], dtype=torch.float64)[: size.heads]}
    return Call(one, given, own, more)


def heads(tokens: int = 9, dim: int = 4, seed: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of two sequences and two heads, in float64."""
    return noise(seed, 2, 2, tokens, dim), noise(seed + 1, 2, 2, tokens, dim), noise(seed + 2, 2, 2, tokens, dim)


def inputs(query: Tensor, key: Tensor, value: Tensor | None = None, **rule: Any) -> AttentionInputs:
    """Return the inputs of a call at scale 0.5. Patterns do not read values: keys stand in for them."""
    return AttentionInputs(query, key, key if value is None else value, **{"scale": 0.5, **rule})


def softmax(query: Tensor, key: Tensor, *, seen: Tensor | None = None, scale: float = 0.5) -> Tensor:
    """Return textbook attention."""
    logits = scale * query @ key.mT
    return (logits if seen is None else logits.masked_fill(~seen, -torch.inf)).softmax(-1)


def answered(call: Call) -> dict[str, Tensor]:
    """Return the answer as tensors by name."""
    found: Any = call()
    return found if isinstance(found, dict) else {"": found}


def able(one: Variant, mask: str) -> bool:
    return (one.card.causal or "causal" not in mask) and (one.card.keys_are_tokens or mask != "of each query")
