"""Heads of different kinds in one block, with shared projections (Multiformer, arXiv:2205.07100).

`kinds` names one kind for every head (fewer names are repeated): `full` is softmax attention, any other name a variant.
Options of a kind carry its name, `local_window=8`, `performer_projection=...`, and are for the heads of that kind.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.registry import variants
from attnscope.core.variant import Size, Variant, variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import Key, Mixed, Query, Value, Visible, for_every_head, mix

MULTIFORMER = ("full", "local", "performer", "compressed")


def start(size: Size, *, kinds: Sequence[str] = MULTIFORMER) -> dict[str, Tensor]:
    """Start each kind, for as many heads as it has."""
    begun: dict[str, Tensor] = {}
    for kind, heads in _heads_of(kinds, size.heads).items():
        if kind != "full":
            mine = replace(size, heads=len(heads), kv_heads=None)
            begun |= {f"{kind}_{name}": tensor for name, tensor in _variant(kind, False).start(mine).items()}
    return begun


def slow(
    query: Query,
    key: Key,
    value: Value,
    *,
    visible: Visible,
    causal: bool,
    scale: float,
    kinds: Sequence[str] = MULTIFORMER,
    **of_kinds: Any,
) -> Mixed:
    """Compute one head after the other, each in its own slow form."""

    def attend(kind: str, query: Tensor, key: Tensor, value: Tensor, visible: Visible, **options: Any) -> Tensor:
        call: dict[str, Any] = {"visible": visible, "causal": causal, "scale": scale}
        if kind == "full":
            return mix(softmax_pattern(query, key, **call), value)
        chosen = _variant(kind, causal)
        if chosen.slow is not None:
            mixed: Tensor = chosen.slow(query, key, value, **call, **options)
            return mixed
        assert chosen.pattern is not None
        return mix(chosen.pattern(query, key, **call, **options), value)

    return _by_kind(attend, (query, key, value), visible, kinds, of_kinds)


@variant(
    kind="pattern",
    title="Heads of different kinds",
    summary="Every head of a layer has its own kind of attention (full, local, performer, compressed, or any other).",
    citation="arXiv:2205.07100",
    formula="head h: A^h V^h by its own kind;  all heads share W_Q, W_K, W_V, W_O",
    cost="as its kinds",
    rows_sum_to_one=False,
    nonnegative=False,
    keys_are_tokens=False,
    cross=False,
    parameters={"KIND_NAME": "as that kind says, for its heads"},
    settings={"kinds": "one kind for each head; fewer are repeated"},
    start=start,
    slow=slow,
    changes="heads that are not full lose what their kind loses; with kinds=('full',) nothing changes",
)
def mixed_heads(
    query: Query,
    key: Key,
    value: Value,
    *,
    visible: Visible,
    causal: bool,
    scale: float,
    kinds: Sequence[str] = MULTIFORMER,
    **of_kinds: Any,
) -> Mixed:
    def attend(kind: str, query: Tensor, key: Tensor, value: Tensor, visible: Visible, **options: Any) -> Tensor:
        if kind == "full":
            return plain_attention(query, key, value, visible=visible, causal=causal, scale=scale)
        chosen = _variant(kind, causal)
        mixed: Tensor = chosen(query, key, value, visible=visible, causal=causal, scale=scale, **options)
        return mixed

    return _by_kind(attend, (query, key, value), visible, kinds, of_kinds)


def _by_kind(
    attend: Any, qkv: tuple[Tensor, Tensor, Tensor], visible: Visible, kinds: Sequence[str], of_kinds: dict[str, Any]
) -> Mixed:
    heads = qkv[0].shape[1]
    query, key, value = (for_every_head(tensor, heads) for tensor in qkv)
    parts: list[Tensor] = []
    order: list[int] = []
    assigned = _heads_of(kinds, heads)
    _refuse_options_of_no_kind(of_kinds, tuple(assigned))
    for kind, mine in assigned.items():
        seen = visible[:, mine] if visible is not None and visible.shape[1] != 1 else visible
        options = {name.removeprefix(f"{kind}_"): x for name, x in of_kinds.items() if name.startswith(f"{kind}_")}
        parts.append(attend(kind, query[:, mine], key[:, mine], value[:, mine], seen, **options))
        order += mine
    return torch.cat(parts, 1)[:, torch.tensor(order, device=query.device).argsort()]


def _heads_of(kinds: Sequence[str], heads: int) -> dict[str, list[int]]:
    if not kinds:
        raise RefusalError("Name at least one kind of attention, such as kinds=('full', 'local').")
    found: dict[str, list[int]] = {}
    for head in range(heads):
        found.setdefault(kinds[head % len(kinds)], []).append(head)
    return found


def _variant(kind: str, causal: bool) -> Variant:
    known = {name: v for name, v in variants().items() if v.card.kind in ("pattern", "logits")}
    known.pop("mixed_heads", None)
    if kind not in known:
        raise RefusalError(f"There is no kind of head called '{kind}'.{nearest(kind, ['full', *known])}")
    if causal and not known[kind].card.causal:
        raise RefusalError(f"Heads of kind '{kind}' see the future: choose another kind for a causal model.")
    return known[kind]


def _refuse_options_of_no_kind(options: dict[str, Any], kinds: tuple[str, ...]) -> None:
    for name in options:
        if not name.startswith(tuple(f"{kind}_" for kind in kinds)):
            raise RefusalError(f"'{name}' belongs to no kind of head that is here: {', '.join(kinds)}.")
