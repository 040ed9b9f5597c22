"""A variant is an attention that was published and can be exchanged: a plain tensor function with a card.

    @variant(kind="pattern", title="Local window", citation="arXiv:2004.05150", formula=..., cost="n w", ...)
    def local(query, key, value, *, visible, causal, scale, window=64) -> Float[Tensor, "batch head query dim"]:

The names of its positional parameters say what it is given, and its kind says where that is found in a model:

    pattern   (query, key, value) as `[batch, head, token, dim]`: other weights than softmax's. `visible` (True where a
    logits    key is seen, one row for all queries or one for each), `causal` and `scale` are the call's; keys and
              values may have fewer heads than queries, which then share them. `logits`: what happens before softmax
    output    (mixed, stream) or (value, stream) as `[batch, token, head, dim]` and `[batch, token, width]`: what is
              done to what heads give, or to the values before they are mixed
    block     (write,), (write, stream), (normed,), (stream,) as `[batch, token, width]`, (streams,) with a layer in
              front: norms and residual. `write` is what attention or the MLP is about to add to the stream, `normed`
              what a norm gave, `stream` what it would be given
    weights   (weights,): projections by name (`query_weight`, `key_bias`, ...) as `[out, in]` and `[out]`; the same
              mapping comes back, changed

Keyword parameters are trained tensors (`parameters` of the card), tensors that are drawn and not trained (`drawn`), or
plain settings; a setting that is called like a field of `Size` is filled from there.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from attnscope.core.card import digest, names

Kind = Literal["pattern", "logits", "output", "block", "weights"]
Memory = Literal["n", "n^2"]
"""What mixing n tokens takes beside its inputs: "n" is what a fused kernel takes, "n^2" a pattern written out."""
CALL = ("visible", "causal", "scale")

ANY_PATTERN = ("row_mass", "row_sum_squares", "head_overlap")
OF_TOKENS = ("first_key_mass", "self_mass", "previous_mass", "received")
OF_DISTRIBUTIONS = ("row_peak", "row_entropy")
OF_DISTANCES = ("mean_distance",)
STATISTICS = (*ANY_PATTERN, *OF_TOKENS, *OF_DISTRIBUTIONS, *OF_DISTANCES)

_COSTS = {"none": "no more mixing of tokens than there was"}
_SIGNS = {True: "no weight is negative", False: "weights may be negative"}


@dataclass(frozen=True)
class Size:
    """The place in a model that a variant is made for; `layer` is counted from 1."""

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
    """What is known about a variant before any model is seen. Exactly one of `keeps` and `changes` has words."""

    name: str
    title: str
    summary: str
    citation: str
    formula: str
    kind: Kind
    takes: tuple[str, ...]
    cost: str  # time to mix n tokens: "n^2", "n", "n w"; "none": no more mixing than there was
    memory: Memory
    causal: bool  # whether it can hide the future
    cross: bool  # whether queries may come from another sequence than keys
    rows_sum_to_one: bool
    nonnegative: bool
    keys_are_tokens: bool  # False where columns of the pattern stand for several tokens
    trains: bool  # False: it does its work without training
    parameters: Mapping[str, str] = field(default_factory=dict)  # trained: name and shape in words
    drawn: Mapping[str, str] = field(default_factory=dict)  # come with the start and are not trained
    settings: Mapping[str, str] = field(default_factory=dict)
    keeps: str | None = None  # the start from which the model computes what it computed before
    changes: str | None = None  # why there is no such start

    @property
    def statistics(self) -> tuple[str, ...]:
        """Which statistics of a pattern (`matrix.statistics`) mean here what they mean for softmax."""
        held = list(ANY_PATTERN)
        if self.nonnegative and self.keys_are_tokens:
            held += OF_TOKENS
        if self.nonnegative and self.rows_sum_to_one:
            held += OF_DISTRIBUTIONS
            held += OF_DISTANCES if self.keys_are_tokens else ()
        return tuple(held)

    def facts(self) -> list[tuple[str, str]]:
        """The card in words, for a terminal and a page: what is called what, and what is said of it."""
        yes_no = {True: "yes", False: "no"}
        said = [
            ("formula", self.formula),
            ("given", ", ".join(self.takes)),
            ("time", _COSTS.get(self.cost, self.cost)),
            ("memory", self.memory),
            ("causal", "yes" if self.causal else "no: it sees later tokens"),
            ("cross-attention", yes_no[self.cross]),
        ]
        said += [("trained", f"{name}: {shape}") for name, shape in self.parameters.items()]
        said += [("drawn", f"{name}: {shape}") for name, shape in self.drawn.items()]
        said += [("setting", f"{name}: {words}") for name, words in self.settings.items()]
        said += [("keeps", self.keeps)] if self.keeps else []
        said += [("changes", self.changes)] if self.changes else []
        said += [] if self.trains else [("training", "none needed")]
        if self.kind in ("pattern", "logits"):
            lost = [name for name in STATISTICS if name not in self.statistics]
            said += [
                ("rows", f"{'sum to 1' if self.rows_sum_to_one else 'need not sum to 1'}; {_SIGNS[self.nonnegative]}"),
                ("statistics", "all hold" if not lost else f"do not hold: {', '.join(lost)}"),
            ]
        return [*said, ("source", self.citation)]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "takes": list(self.takes), "statistics": list(self.statistics)}


@dataclass(frozen=True)
class Variant:
    """A registered variant: call it with what `card.takes` names.

    `pattern(query, key, *, visible, causal, scale, ...)` writes the weights out, slowly and obviously, where there are
    such; `slow(query, key, value, ...)` is the output in that way. `start(size, **settings)` gives the tensors to begin
    with (of `weights` kind: `start(weights)`), in float32.
    """

    card: VariantCard
    function: Callable[..., Any]
    start: Callable[..., dict[str, Any]]
    pattern: Callable[..., Any] | None = None
    slow: Callable[..., Any] | None = None

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.function(*given, **more)


def nothing_to_start(_: Size) -> dict[str, Any]:
    """The start of a variant without tensors of its own."""
    return {}


def variant(
    *,
    kind: Kind,
    title: str,
    summary: str,
    citation: str,
    formula: str,
    cost: str,
    memory: Memory = "n",
    keeps: str | None = None,
    changes: str | None = None,
    causal: bool = True,
    cross: bool = True,
    rows_sum_to_one: bool = True,
    nonnegative: bool = True,
    keys_are_tokens: bool = True,
    trains: bool = True,
    parameters: Mapping[str, str] | None = None,
    drawn: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    start: Callable[..., dict[str, Any]] = nothing_to_start,
    pattern: Callable[..., Any] | None = None,
    slow: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Variant]:
    """Turn a function into a variant named like the function, which is named like its file.

    What the card says of the pattern's rows is of the variant at whatever its parameters may become in training. Where
    `pattern` alone is given, the slow form is its product with the values.
    """

    def register(function: Callable[..., Any]) -> Variant:
        named = inspect.signature(function).parameters
        known = {**inspect.signature(start).parameters, **named}  # a start may have settings of its own
        takes = tuple(name for name, one in named.items() if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        card = VariantCard(
            name=function.__name__,
            title=title,
            summary=summary,
            citation=citation,
            formula=formula,
            kind=kind,
            takes=takes,
            cost=cost,
            memory=memory,
            causal=causal,
            cross=cross,
            rows_sum_to_one=rows_sum_to_one,
            nonnegative=nonnegative,
            keys_are_tokens=keys_are_tokens,
            trains=trains,
            parameters=dict(parameters or {}),
            drawn=dict(drawn or {}),
            settings={name: words + _unless_said(known[name].default) for name, words in (settings or {}).items()},
            keeps=keeps,
            changes=changes,
        )
        return Variant(card, function, start, pattern, slow)

    return register


def _unless_said(default: Any) -> str:
    """What a setting is where nobody names it."""
    if default is inspect.Parameter.empty:
        return ""
    return f" ({', '.join(default) if isinstance(default, tuple) else default} if not said)"


# What can be exchanged, without importing it: the variants import torch, and a list of them should not.
#
# `cards.json`, in the room, holds the card of every variant with the hash of the file that defines it; it is written by
# `tools/variant_cards.py` (`make tables`). A file that is new or has changed since is imported and asked itself, so the
# list is right either way, and quick where nothing has changed.

ROOM = "attnscope.variants"
FILE = "cards.json"


def variant_cards() -> dict[str, VariantCard]:
    """Every variant's card, by name."""
    written = _written()
    return {name: _card(name, written.get(name)) for name in names(ROOM)}


def cards_json(variants: Mapping[str, Variant]) -> bytes:
    """The file in the room."""
    data = {name: {"sha256": digest(ROOM, name), **_document(one.card)} for name, one in sorted(variants.items())}
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _card(name: str, written: Mapping[str, Any] | None) -> VariantCard:
    if written is not None and written["sha256"] == digest(ROOM, name):
        known = {field.name: written[field.name] for field in fields(VariantCard)}
        return VariantCard(**{**known, "takes": tuple(known["takes"])})
    from attnscope.core.registry import variants

    return variants()[name].card


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(ROOM).joinpath(FILE).read_text("utf-8"))
    return found


def _document(card: VariantCard) -> dict[str, Any]:
    said = card.to_json()
    return {field.name: said[field.name] for field in fields(VariantCard)}
