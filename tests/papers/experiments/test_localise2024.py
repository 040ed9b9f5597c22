"""`localise2024`, small enough to run in every test; its formulas against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnscope.core.experiment import Result
from attnscope.matrix.spectrum import qk_spectrum
from attnscope.papers.experiments.localise2024 import LARGE, PLAIN, SMALL, localise2024, numbers_of
from attnscope.papers.models.decoder import Decoder, Shape
from attnscope.papers.models.tasks import characters
from attnscope.papers.trials.localising import attentions, head_weights, locater, one_layer, weight_of
from attnscope.papers.trials.sinks_and_spikes import Growth

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
def test_weights_have_the_requested_eta_and_size(eta: float) -> None:
    weight = weight_of(12, eta, 2.0, torch.Generator().manual_seed(0))
    _, _, found = qk_spectrum(weight, torch.eye(12, dtype=weight.dtype))
    assert float(found) == pytest.approx(eta, abs=1e-12)
    assert float(weight.norm()) == pytest.approx(2 * 12**0.5, abs=1e-12)


def test_the_identity_keeps_tokens_to_themselves() -> None:
    """s = 4, eta = 1: own logits 4 |x|^2 / sqrt(d) are 32 or so, others N(0, 4^2): nearly all weight is their own."""
    assert one_layer(32, 64, 1.0, 4.0, seed=0, depth=1)["own"] > 0.99
    assert one_layer(32, 64, 0.0, 1.0, seed=0, depth=1)["own"] < 0.2


def test_penalty_equals_its_formula() -> None:
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


def rows(left: Callable[[float, float], float], **losses: tuple[float, float]) -> list[dict[str, Any]]:
    """Return a table whose cells leave so much, and models with these losses: reported ones, and those to choose by."""
    table = [
        {"part": "table", "size": size, "eta": eta, "own": eta, "entropy": 5 - size - eta, "left": left(size, eta)}
        for size in (SMALL, PLAIN, LARGE)
        for eta in (0.0, 0.5, 1.0)
    ]
    arms = [
        {"part": "LocAteR", "strength": float(number), "eta": 0.0, "own": 0.1, "entropy": 0.5, "chance": 4.0}
        | {"loss": loss, "loss_to_choose_by": other}
        for number, (loss, other) in enumerate(losses.values())
    ]
    return table + arms


def verdicts_of(some: list[dict[str, Any]]) -> dict[str, str]:
    found = Result({name: [value] for name, value in numbers_of(some).items()})
    return {claim.name: claim.verdict for claim in localise2024.judged(found)}


def test_rank_collapse_is_a_contrast_and_not_a_small_number() -> None:
    asked = ("small_weights_collapse_rank", "a_concentrated_one_avoids_rank_collapse")
    everywhere = verdicts_of(rows(lambda size, eta: 0.001, plain=(2.0, 2.0), some=(2.0, 2.0)))
    nowhere = verdicts_of(rows(lambda size, eta: 0.9, plain=(2.0, 2.0), some=(2.0, 2.0)))
    as_said = verdicts_of(rows(lambda size, eta: eta * (size > SMALL), plain=(2.0, 2.0), some=(2.0, 2.0)))
    for name in asked:
        assert "reproduced" not in (everywhere[name], nowhere[name]), name
        assert as_said[name] == "reproduced", name


def test_the_penalty_is_chosen_on_other_text_than_it_is_judged_on() -> None:
    """The penalty is chosen by the loss on the text to choose by, not by the lowest reported loss."""
    numbers = numbers_of(rows(lambda size, eta: eta, plain=(2.0, 2.0), weak=(1.9, 2.1), strong=(2.05, 1.9)))
    assert numbers["chosen_strength"] == 2.0
    assert numbers["loss_added_by_chosen"] == pytest.approx(0.05)
    halves = [characters(20, 50, 0, held_out=True, half=half).ids[:, 1:] for half in (0, 1)]
    windows = [{tuple(row) for row in half.unfold(1, 15, 1).reshape(-1, 15).tolist()} for half in halves]
    assert windows[0].isdisjoint(windows[1])  # fifteen letters in a row seldom come twice


def test_models_that_learned_nothing_are_not_compared() -> None:
    for plain, strong in ((3.9, 2.0), (2.0, 3.9)):
        verdicts = verdicts_of(rows(lambda size, eta: eta, plain=(plain, plain), strong=(strong, strong)))
        assert {verdicts[f"the_penalty_{does}"] for does in ("concentrates", "localises", "helps")} == {"not run"}
