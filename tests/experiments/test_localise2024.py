"""`localise2024`, small enough to run in every test; its formulas against closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnscope.experiments.localise2024 import localise2024
from attnscope.matrix.spectrum import qk_spectrum
from attnscope.models.decoder import Decoder, Shape
from attnscope.trials.localising import attentions, head_weights, locater, one_layer, weight_of
from attnscope.trials.sinks_and_spikes import Growth

TINY = replace(
    localise2024.presets["quick"],
    tokens=16,
    width=8,
    draws=2,
    depth=2,
    growth=Growth(steps=3, data="characters", tokens=12, rows=32, held=4, batch=4, width=16, hidden=16, layers=1),
    strengths=(0.0, 0.1),
    samples=2,
    max_tokens=16,
)


@pytest.mark.parametrize("eta", [0.0, 0.3, 0.9, 1.0])
def test_weights_have_the_eta_and_the_size_that_they_are_given(eta: float) -> None:
    weight = weight_of(12, eta, 2.0, torch.Generator().manual_seed(0))
    _, _, found = qk_spectrum(weight, torch.eye(12, dtype=weight.dtype))
    assert float(found) == pytest.approx(eta, abs=1e-12)
    assert float(weight.norm()) == pytest.approx(2 * 12**0.5, abs=1e-12)


def test_the_identity_keeps_tokens_to_themselves() -> None:
    """s = 4, eta = 1: own logits 4 |x|^2 / sqrt(d) are 32 or so, others N(0, 4^2): nearly all weight is their own."""
    assert one_layer(32, 64, 1.0, 4.0, seed=0, depth=1)["own"] > 0.99
    assert one_layer(32, 64, 0.0, 1.0, seed=0, depth=1)["own"] < 0.2


def test_the_penalty_is_what_its_formula_says() -> None:
    model = Decoder(Shape(vocabulary=5, width=8, heads=2, layers=1, hidden=8), seed=0)
    (layer,) = attentions(model)
    wanted = []
    for head in range(2):
        some = slice(4 * head, 4 * head + 4)
        logits = layer.query.weight[some].T @ layer.key.weight[some] * 4**-0.5  # as the model has them
        weight = logits * 8**0.5  # so that they are x W y / sqrt(d)
        torch.testing.assert_close(head_weights(layer)[head], weight)
        wanted.append(weight.square().sum() / 8 + (weight.trace() / 8**0.5 - 1.0) ** 2)
    torch.testing.assert_close(locater(model, 1.0), sum(wanted) / 2)
