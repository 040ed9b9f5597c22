"""Prune a real model: what the headline promises holds on text that the run has not seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.commands.treat import pruning
from attnscope.commands.treat.halves import SequenceLoss
from attnscope.commands.treat.prune_words import verdict
from attnscope.commands.treat.removal_losses import RemovalLosses
from attnscope.commands.treat.run import treat
from attnscope.data.batches import Batches
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import prunable
from attnscope.hf.loading.load import load
from bench.prune_promise import sequences

BUDGET = 0.05


@pytest.mark.thorough
def test_heads_of_a_gpt2_of_microbes_can_go_within_the_budget_on_fresh_sequences(
    material: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "POINTS", 4)  # fewer points on the held-out curves, which decide nothing
    loaded = load(material("microformer"), allow_pickle=True)
    drawn = sequences(loaded.model, 224, 32, seed=100)  # it has no tokenizer, and reads what it draws itself
    batches = [{"input_ids": rows} for rows in drawn[:160].split(4)]
    found = treat(loaded, batches, remedy="prune", keep_loss=BUDGET, samples=32, settings={"prompts": 4})
    assert found.pruning is not None
    assert found.removed
    assert found.budget_kept
    assert " can go: " in verdict(found).sentence
    fresh = Batches.of([{"input_ids": rows} for rows in drawn[160:].split(16)])
    sites = prunable(loaded.model, anatomy(loaded.model))
    rise = RemovalLosses(SequenceLoss(loaded), sites, {"fresh": fresh}).change("fresh", found.removed)
    assert rise.mean <= BUDGET
