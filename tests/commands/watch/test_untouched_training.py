"""A watch changes nothing: weights, optimiser, random state and losses are the same to the bit, dropout on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attnscope
from attnscope.commands.timeline.read import read_run
from tests.commands.watch.training import STEPS, gpt2, llama, numbers_of, train


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (gpt2, {}),
        (llama, {"accumulate": 2, "evaluate": True}),
        (gpt2, {"autocast": torch.bfloat16}),
    ],
    ids=["plain", "accumulated, evaluated in between", "bfloat16"],
)
def test_a_plain_loop(make, how, tmp_path: Path) -> None:
    alone = train(make(), **how)
    watched = train(make(), lambda model: attnscope.watch(model, tmp_path / "run", every=2), **how)
    watched.assert_equal(alone)
    run = read_run(tmp_path / "run")
    assert [look.step for look in run.looks] == [0, 1, 2, 4, 6]
    for look in run.looks[1:]:
        assert numbers_of(look, "entropy").shape[0] == 2
        assert (numbers_of(look, "entropy") > 0).all()
        assert (numbers_of(look, "gradient_norm", "query") > 0).all()
        assert (numbers_of(look, "update_ratio", "query") > 0).all()
        assert look.loss == pytest.approx(watched.losses[look.step - 1], rel=1e-5)  # six figures are kept
    assert run.looks[-1].tokens == STEPS * how.get("accumulate", 1) * 4 * 12
