"""A variant is a published form of attention that can replace another: a plain tensor function with a card.

    @variant(kind="pattern", title="Local window", citation="arXiv:2004.05150", formula=..., cost="n w", ...)
    def local(inputs: AttentionInputs, *, window: int = 64) -> Mixed:

The names of its positional parameters say what it reads, and its kind says where in a model it acts:

    pattern   (inputs,): queries, keys and values as `[batch, head, token, dim]`, `visible` (True where a key is seen,
    logits    one row for all queries or one for each), `causal` and `scale` (`matrix.visibility.AttentionInputs`); keys
              and values may have fewer heads than queries, which then share them. `pattern` replaces the
              softmax weights. `logits` changes the input of softmax: `plain_attention(replace(inputs, query=...))`
    output    (mixed, stream) or (value, stream) as `[batch, token, head, dim]` and `[batch, token, width]`: changes
              the output of heads, or the values before they are mixed
    block     (write,), (write, stream), (normed,), (stream,) as `[batch, token, width]`, or (streams,) with an
              axis for blocks in front: changes norms or the residual. `write` is what attention or the MLP is about to
              add to the stream, `normed` the output of a norm, `stream` its input
    weights   (weights,): projections by name (`query_weight`, `key_bias`, ...) as `[out, in]` and `[out]`; returns
              the changed mapping

Keyword parameters are trained tensors (`parameters` of the card), random tensors that are not trained (`drawn`), or
plain settings; a setting named like a field of `Size` gets the value of that field.

Variants import torch, but listing them must not. So `cards.json` in the room holds every card with the hash of its
file (`tools/variant_cards.py` writes it, `make tables`). A file that is new or changed is imported instead.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NotRequired, TypedDict, Unpack

from attnscope.core.card import digest, names

Kind = Literal["pattern", "logits", "output", "block", "weights"]
Memory = Literal["n", "n^2"]
"""Memory needed to mix n tokens, besides the inputs: "n" for a fused kernel, "n^2" for a dense pattern."""
ROOM = "attnscope.variants"
FILE = "cards.json"
MASK = ("visible", "causal")
"""Keywords that a variant of kind block may have, filled with the mask of the attention beside it."""
ATTENTION = ("query", "key", "value")
"""The names that a card lists in `takes` for a function of `inputs`."""

ANY_PATTERN = ("row_mass", "row_sum_squares", "head_overlap")
OF_TOKENS = ("first_key_mass", "self_mass", "previous_mass", "received")
OF_DISTRIBUTIONS = ("row_peak", "row_entropy")
OF_DISTANCES = ("mean_distance", "mass_by_distance")
STATISTICS = (*ANY_PATTERN, *OF_TOKENS, *OF_DISTRIBUTIONS, *OF_DISTANCES)

_COSTS = {"none": "no more than before"}
_SIGNS = {True: "no weight is negative", False: "weights may be negative"}


@dataclass(frozen=True)
class Size:
    """The size of the attention that a variant replaces. `layer` is the block's number plus one: 1 for block 0."""

    heads: int
    dim: int
    width: int
    kv_heads: int | None = None
    layers: int = 1
    layer: int = 1

    @property
    def value_heads(self) -> int:
        return self.kv_heads or self.heads


@dataclass(frozen=True)
class VariantCard:
    """Description of a variant, independent of any model. Exactly one of `keeps` and `changes` is given."""

    name: str
    title: str
    summary: str
    citation: str
    formula: str
    kind: Kind
    takes: tuple[str, ...]
    cost: str  # time to mix n tokens: "n^2", "n", "n w"; "none": no more mixing than before
    memory: Memory = "n"
    causal: bool = True  # whether it can hide later tokens
    cross: bool = True  # whether queries and keys may come from different sequences
    rows_sum_to_one: bool = True
    nonnegative: bool = True
    keys_are_tokens: bool = True  # False if columns of the pattern stand for several tokens
    trains: bool = True  # False: it works without training
    parameters: Mapping[str, str] = field(default_factory=dict)  # trained tensors: the shape of each, in words
    drawn: Mapping[str, str] = field(default_factory=dict)  # tensors that `start` draws and that are not trained
    settings: Mapping[str, str] = field(default_factory=dict)
    keeps: str | None = None  # the initial values with which the model computes the same as before
    changes: str | None = None  # why there are no such initial values

    @property
    def statistics(self) -> tuple[str, ...]:
        """Return the statistics of a pattern (`matrix.statistics`) that mean the same as for softmax."""
        held = list(ANY_PATTERN)
        if self.nonnegative and self.keys_are_tokens:
            held += OF_TOKENS
        if self.nonnegative and self.rows_sum_to_one:
            held += OF_DISTRIBUTIONS
            held += OF_DISTANCES if self.keys_are_tokens else ()
        return tuple(held)

    def facts(self) -> list[tuple[str, str]]:
        """Return the card as (label, text) pairs, for a terminal and a page."""
        yes_no = {True: "yes", False: "no"}
        facts = [
            ("formula", self.formula),
            ("given", ", ".join(self.takes)),
            ("time", _COSTS.get(self.cost, self.cost)),
            ("memory", self.memory),
            ("causal", "yes" if self.causal else "no: it sees later tokens"),
            ("cross-attention", yes_no[self.cross]),
        ]
        facts += [("trained", f"{name}: {shape}") for name, shape in self.parameters.items()]
        facts += [("drawn", f"{name}: {shape}") for name, shape in self.drawn.items()]
        facts += [("setting", f"{name}: {words}") for name, words in self.settings.items()]
        facts += [("keeps", self.keeps)] if self.keeps else []
        facts += [("changes", self.changes)] if self.changes else []
        facts += [] if self.trains else [("training", "none needed")]
        if self.kind in ("pattern", "logits"):
            lost = [name for name in STATISTICS if name not in self.statistics]
            facts += [
                ("rows", f"{'sum to 1' if self.rows_sum_to_one else 'need not sum to 1'}; {_SIGNS[self.nonnegative]}"),
                ("statistics", "all hold" if not lost else f"do not hold: {', '.join(lost)}"),
            ]
        return [*facts, ("source", self.citation)]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "takes": list(self.takes), "statistics": list(self.statistics)}


class VariantFields(TypedDict):
    """The fields of a `VariantCard` that a leaf file declares."""

    kind: Kind
    title: str
    summary: str
    citation: str
    formula: str
    cost: str
    memory: NotRequired[Memory]
    keeps: NotRequired[str]
    changes: NotRequired[str]
    causal: NotRequired[bool]
    cross: NotRequired[bool]
    rows_sum_to_one: NotRequired[bool]
    nonnegative: NotRequired[bool]
    keys_are_tokens: NotRequired[bool]
    trains: NotRequired[bool]
    parameters: NotRequired[Mapping[str, str]]
    drawn: NotRequired[Mapping[str, str]]
    settings: NotRequired[Mapping[str, str]]


@dataclass(frozen=True)
class Variant:
    """A registered variant: call it with the arguments of the function in its file.

    `pattern(inputs, ...)` returns the dense weights, if the variant has any, and `slow(inputs, ...)` the output
    computed from them; tests compare the variant with both. `start(size, **settings)` returns the initial tensors in
    float32 (kind `weights`: `start(weights)`).
    """

    card: VariantCard
    function: Callable[..., Any]
    start: Callable[..., dict[str, Any]]
    pattern: Callable[..., Any] | None = None
    slow: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def nothing_to_start(_: Size) -> dict[str, Any]:
    """Return no initial tensors, for variants that have none."""
    return {}


def variant(
    *,
    start: Callable[..., dict[str, Any]] = nothing_to_start,
    pattern: Callable[..., Any] | None = None,
    slow: Callable[..., Any] | None = None,
    **declared: Unpack[VariantFields],
) -> Callable[[Callable[..., Any]], Variant]:
    """Turn a function into a variant of the same name, which is also the name of its file.

    The card describes the pattern's rows for any value that the parameters may take in training. If only `pattern` is
    given, the slow form is its product with the values.
    """

    def register(function: Callable[..., Any]) -> Variant:
        parameters = inspect.signature(function).parameters
        # `start` may have more settings than the function
        known = {**inspect.signature(start).parameters, **parameters}
        takes = tuple(n for n, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        takes = ATTENTION if takes == ("inputs",) else takes
        card = VariantCard(name=function.__name__, takes=takes, **declared)
        settings = {name: words + _default_words(known[name].default) for name, words in card.settings.items()}
        return Variant(replace(card, settings=settings), function, start, pattern, slow)

    return register


def _default_words(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return ""
    return f" (default: {', '.join(default) if isinstance(default, tuple) else default})"


def variant_cards() -> dict[str, VariantCard]:
    """Return every card by name."""
    stored = _stored_cards()
    return {name: _card(name, stored.get(name)) for name in names(ROOM)}


def cards_json(variants: Mapping[str, Variant]) -> bytes:
    """Return the content of cards.json."""
    data = {
        name: {"sha256": digest(ROOM, name), **{f.name: variant.card.to_json()[f.name] for f in fields(VariantCard)}}
        for name, variant in sorted(variants.items())
    }
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _card(name: str, stored: Mapping[str, Any] | None) -> VariantCard:
    if stored is not None and stored["sha256"] == digest(ROOM, name):
        known = {field.name: stored[field.name] for field in fields(VariantCard)}
        return VariantCard(**{**known, "takes": tuple(known["takes"])})
    from attnscope.core.registry import variants

    return variants()[name].card


@cache
def _stored_cards() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(files(ROOM).joinpath(FILE).read_text("utf-8"))
    return stored
