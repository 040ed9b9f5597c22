"""Raw attention is the last map, averaged over heads; of two stacks, the last of each kind."""

import pytest
import torch

from attnscope.explanations.raw_attention import raw_attention
from tests.explanations.runs import captured, eager_maps


@pytest.mark.parametrize("name", ["GPT-2", "Gemma2", "T5"])
def test_equals_the_row_of_the_last_map(name: str) -> None:
    run, start = captured(name, torch.float64)
    maps, _ = eager_maps(name, torch.float64)
    found = raw_attention(calls=run.calls, start=start)
    last = {"self": "model", "decoder": "decoder", "cross": "encoder"}
    expected = {last[kind]: pattern.mean(0)[-1] for kind, pattern, _ in maps if kind in last}
    assert set(found) == set(expected)
    # Written out, Gemma 2 and T5 take their softmax in float32.
    for stack, numbers in found.items():
        torch.testing.assert_close(numbers, expected[stack].double(), rtol=0, atol=1e-12 if name == "GPT-2" else 1e-6)
        assert float(numbers.sum()) == pytest.approx(1, abs=1e-6)
