"""Value zeroing: by hand, and against a model whose value projection is zeroed token by token, block by block."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.explanations.value_zeroing import value_zeroing
from attnscope.hf.tapping.zeroing import moved_by_zeroing
from tests.explanations.runs import batch_of, model_of, places_of


def test_rows_are_made_shares_and_multiplied() -> None:
    moved = torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[0.0, 0.0], [2.0, 2.0]]], dtype=torch.float64)
    start = {"model": torch.tensor([0.0, 1.0], dtype=torch.float64)}
    found = value_zeroing(zeroed=lambda stack: moved, start=start)["model"]
    # Last layer: (1/2, 1/2). First: row 0 is (1/4, 3/4), row 1 does not move and keeps what it has.
    assert found.tolist() == [0.125, 0.875]


@pytest.mark.parametrize("name", ["Llama", "MPNet"])
def test_equals_blocks_run_with_one_value_zero(name: str) -> None:
    """MPNet writes its softmax out; Llama has the fused kernel and heads that share values."""
    model, batch = model_of(name, torch.float64), batch_of(name)
    found, _ = places_of(name)
    tokens = batch["input_ids"].shape[1]
    moved = moved_by_zeroing(model, batch, found, "model", tokens)
    blocks = model.model.layers if name == "Llama" else model.encoder.layer
    for layer, block in enumerate(blocks):
        projection = block.self_attn.v_proj if name == "Llama" else block.attention.attn.v
        for place in (0, 4, tokens - 1):
            whole, other = (_left(model, block, projection, batch, zero) for zero in (None, place))
            expected = 1 - F.cosine_similarity(whole, other, dim=-1)
            torch.testing.assert_close(moved[layer, :, place], expected.clamp_min(0), rtol=0, atol=1e-12)
    assert float(moved.max()) > 1e-4


def _left(model: torch.nn.Module, block: torch.nn.Module, projection: torch.nn.Module, batch: dict[str, Tensor],
          zero: int | None) -> Tensor:  # fmt: skip
    """What leaves a block when one row of its value projection is zero; what comes before it is untouched."""
    kept: list[Tensor] = []

    def without(module: torch.nn.Module, args: object, output: Tensor) -> Tensor:
        output = output.clone()
        if zero is not None:
            output[:, zero] = 0
        return output

    def keep(module: torch.nn.Module, args: object, output: object) -> None:
        kept.append(output[0][0] if isinstance(output, tuple) else output[0])  # type: ignore[index]

    hooks = [projection.register_forward_hook(without), block.register_forward_hook(keep)]
    try:
        with torch.no_grad():
            model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    return kept[0]
