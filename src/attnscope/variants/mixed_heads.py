"""Heads of different kinds in one block, with shared projections (Multiformer, arXiv:2205.07100).

`kinds` names one kind for every head (fewer names are repeated): `full` is softmax attention, any other name a variant.
An option of one kind is prefixed with its name (`local_window=8`, `performer_projection=...`) and is passed to its
heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.registry import variants
from attnscope.core.variant import Size, Variant, variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, mix

MULTIFORMER = ("full", "local", "performer", "compressed")


def start(size: Size, *, kinds: Sequence[str] = MULTIFORMER) -> dict[str, Tensor]:
    """Return the start parameters of each kind, for the heads that it has."""
    begun: dict[str, Tensor] = {}
    for kind, heads in _heads_of(kinds, size.heads).items():
        if kind != "full":
            mine = replace(size, heads=len(heads), kv_heads=None)
            begun |= {f"{kind}_{name}": tensor for name, tensor in _variant(kind, False).start(mine).items()}
    return begun


def slow(inputs: AttentionInputs, *, kinds: Sequence[str] = MULTIFORMER, **of_kinds: Any) -> Mixed:
    """Compute one head after the other, each in its own slow form."""

    def attend(kind: str, part: AttentionInputs, **options: Any) -> Tensor:
        if kind == "full":
            return mix(softmax_pattern(part), part.value)
        chosen = _variant(kind, part.causal)
        if chosen.slow is not None:
            mixed: Tensor = chosen.slow(part, **options)
            return mixed
        assert chosen.pattern is not None
        return mix(chosen.pattern(part, **options), part.value)

    return _by_kind(attend, inputs, kinds, of_kinds)


@variant(
    kind="pattern",
    title="Heads of different kinds",
    summary="Every head of a block has its own kind of attention (full, local, performer, compressed, or any other).",
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
def mixed_heads(inputs: AttentionInputs, *, kinds: Sequence[str] = MULTIFORMER, **of_kinds: Any) -> Mixed:
    def attend(kind: str, part: AttentionInputs, **options: Any) -> Tensor:
        if kind == "full":
            return plain_attention(part)
        mixed: Tensor = _variant(kind, part.causal)(part, **options)
        return mixed

    return _by_kind(attend, inputs, kinds, of_kinds)


def _by_kind(
    attend: Callable[..., Tensor], inputs: AttentionInputs, kinds: Sequence[str], of_kinds: dict[str, Any]
) -> Mixed:
    parts: list[Tensor] = []
    order: list[int] = []
    assigned = _heads_of(kinds, inputs.query.shape[1])
    _refuse_options_of_no_kind(of_kinds, tuple(assigned))
    for kind, mine in assigned.items():
        options = {name.removeprefix(f"{kind}_"): x for name, x in of_kinds.items() if name.startswith(f"{kind}_")}
        parts.append(attend(kind, inputs.of_heads(mine), **options))
        order += mine
    return torch.cat(parts, 1)[:, torch.tensor(order, device=inputs.query.device).argsort()]


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
        raise RefusalError(f"Heads of kind '{kind}' see later tokens: choose another kind for a causal model.")
    return known[kind]


def _refuse_options_of_no_kind(options: dict[str, Any], kinds: tuple[str, ...]) -> None:
    for name in options:
        if not name.startswith(tuple(f"{kind}_" for kind in kinds)):
            raise RefusalError(f"'{name}' belongs to no kind of head that is here: {', '.join(kinds)}.")
