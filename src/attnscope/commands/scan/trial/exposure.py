"""Two exact tests: do earlier outputs of a causal model depend on later tokens, and do outputs depend on positions?

Under a causal mask the outputs at the first tokens are a function of these tokens alone, so they must not move when all
later tokens are replaced. A model with positions must move when position numbers are reversed; one without a causal
mask must not be the same for tokens in another order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.commands.scan.survey.trial import Exposure
from attnscope.commands.scan.trial.windows import ids_name
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Stack
from attnscope.hf.intercepting.owners import at, every_tensor
from attnscope.hf.intercepting.restoring import Restoring

SHORTEST = 4  # tokens; with fewer there is nothing to replace


def rounding(stack: Stack, dtype: torch.dtype) -> float:
    """Return the largest relative change that rounding can explain: a few rounding errors in each block, which add
    like the square root of their number."""
    return 8 * torch.finfo(dtype).eps * math.sqrt(max(1, len(stack.blocks)))


def exposures(
    model: nn.Module, found: Anatomy, batches: Sequence[Batch], options: Mapping[str, Any]
) -> tuple[Exposure, ...]:
    """Replace the second half of every window, and measure how far states at the first half move.

    If they move, one window is run again: a model that is not deterministic moves without any change.
    """
    stack = found.stacks[-1]
    largest: dict[int, float] = {}
    repeated: tuple[Mapping[str, Tensor], dict[int, Tensor]] | None = None
    dtype = torch.float32
    for batch in batches:
        name = ids_name(batch.inputs)
        if name is None or batch.inputs[name].shape[1] < SHORTEST:
            continue
        ids = batch.inputs[name]
        half = ids.shape[1] // 2
        other = ids.clone()
        other[:, half:] = _other_tokens(ids, half)
        before = _states(model, stack, batch.inputs, options)
        repeated = repeated or (batch.inputs, before)
        after = _states(model, stack, {**batch.inputs, name: other}, options)
        for layer, own in before.items():
            dtype = own.dtype
            largest[layer] = max(largest.get(layer, 0.0), _moved(own[:, :half], after[layer][:, :half]))
    if not largest:
        return ()
    allowed = rounding(stack, dtype)
    first = next((layer for layer, moved in sorted(largest.items()) if moved > allowed), None)
    if first is not None and repeated is not None:
        inputs, before = repeated
        again = _states(model, stack, inputs, options)
        if any(_moved(own, again[layer]) > allowed for layer, own in before.items()):
            raise RefusalError("two runs on the same tokens differ, so nothing can be said (is dropout on?)")
    return (Exposure(stack.name, max(largest.values()), allowed, first),)


def _moved(before: Tensor, after: Tensor) -> float:
    """Return the largest change, relative to the largest entry; 0 where it is NaN."""
    return float(((after - before).abs().amax() / before.abs().amax().clamp_min(1e-30)).nan_to_num())


def _other_tokens(ids: Tensor, half: int) -> Tensor:
    """Return tokens of the same text in another order: the last half reversed, or the first half if that is equal."""
    later = ids[:, half:].flip(1)
    if torch.equal(later, ids[:, half:]):
        later = ids[:, : ids.shape[1] - half].flip(1)
    return later


def _states(
    model: nn.Module, stack: Stack, inputs: Mapping[str, Tensor], options: Mapping[str, Any]
) -> dict[int, Tensor]:
    """Return the state of the stream after every block, [row, token, width]."""
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    left: dict[int, Tensor] = {}

    def leave(block: Block, output: Any) -> None:
        left[block.layer] = stack.turned(at(output, block.leaves)).clone()

    with Restoring() as changes:
        changes.nth_calls(model, stack.calls, after=leave)
        model(**{name: tensor.to(device) for name, tensor in inputs.items()}, **options)
    return left


def order_effect(
    model: nn.Module,
    found: Anatomy,
    batches: Sequence[Batch],
    options: Mapping[str, Any],
    accepts: frozenset[str],
    causal: bool,
) -> tuple[float, float]:
    """Return how far outputs move when positions are reversed, relative to their norm, and what rounding explains.

    Tokens of a model without a causal mask are reversed, and so are its states. A causal model gets reversed
    `position_ids`; NaN if it takes none. (An encoder may take position numbers and ignore them, as DeBERTa does.)
    """
    stack = found.stacks[-1]
    whole = [b for b in batches if b.mask is None or bool(b.mask.all())]
    names = [ids_name(batch.inputs) for batch in whole]
    if not whole or None in names or "decoder_input_ids" in names:
        return math.nan, math.nan
    batch, name = whole[0], str(names[0])
    ids = batch.inputs[name]
    if ids.shape[1] < SHORTEST:
        return math.nan, math.nan
    if not causal:
        own = _states(model, stack, batch.inputs, options)
        turned = {n: t.flip(1) if t.shape[:2] == ids.shape else t for n, t in batch.inputs.items()}
        other = {layer: state.flip(1) for layer, state in _states(model, stack, turned, options).items()}
    elif "position_ids" in accepts:
        places = torch.arange(ids.shape[1])[None].expand(ids.shape)
        # Without a mask, transformers takes falling position numbers for the starts of packed sequences.
        whole_mask = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in accepts else {}
        inputs = {**whole_mask, **batch.inputs}
        own = _states(model, stack, {**inputs, "position_ids": places}, options)
        other = _states(model, stack, {**inputs, "position_ids": places.flip(1)}, options)
    else:
        return math.nan, math.nan
    last = max(own)
    moved = float((other[last] - own[last]).norm() / own[last].norm().clamp_min(1e-30))
    return moved, rounding(stack, own[last].dtype)


def first_floats(output: Any) -> Tensor:
    """Return the first tensor of floats in an output."""
    return next(tensor for tensor in every_tensor(output) if tensor.is_floating_point())
