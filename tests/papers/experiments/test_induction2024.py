"""`induction2024`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.induction2024 import induction2024
from attnscope.papers.models.induction import Chains
from attnscope.papers.trials.induction_training import FLOOR, PHASES, Stretch, trained, uniform_share

TINY = replace(
    induction2024.presets["quick"],
    known=40,
    held=20,
    window=3,
    epochs=10,
    phases=(2, 2, 2),
    others=((1,),),
    other_epochs=2,
    rules=10,
    rows=1,
    tokens=6,
)
# The tables exist for two sizes only, and the second model is measured in the `paper` preset only.
NOT_RUN = {"the_loss_falls_as_published", "induction_heads_in_smollm2"}


def test_the_parents_are_found_whichever_they_are() -> None:
    for parents, wanted in (((1, 2), (0, 1)), ((2, 3), (1, 2))):
        plan = (Stretch("together", PHASES, 40, 1.0),)
        network, rows = trained(Chains(parents), 500, 200, 3, plan, 0, UnsavedSession())
        assert network.sets[int(network.shares.argmax())] == wanted
        assert float(network.shares.max()) > 0.9
        assert FLOOR < rows[-1]["loss"] < rows[0]["loss"] - 0.1


def test_a_phase_changes_only_its_own_weights() -> None:
    plan = [Stretch(name, (name,), 2, 1.0) for name in PHASES]
    _, rows = trained(Chains(), 40, 10, 3, plan, 0, UnsavedSession())
    assert rows[0]["lag_1"] == rows[2]["lag_1"] != rows[4]["lag_1"]
    assert rows[2]["share"] == rows[-1]["share"] != rows[0]["share"]
    assert rows[4]["sharpness"] == rows[0]["sharpness"] != rows[-1]["sharpness"]
    assert [row["epoch"] for row in rows] == list(range(7))


def test_uniform_share_equals_its_definition() -> None:
    """BOS, ten tokens, the same ten: token i of the second time sees 11 + i + 1 tokens, and one followed before."""
    pattern = torch.ones(21, 21).tril() / torch.arange(1, 22)[:, None]
    followed = [float(pattern[11 + place, 1 + place + 1]) for place in range(10)]
    assert uniform_share(10) == pytest.approx(sum(followed) / 10)
