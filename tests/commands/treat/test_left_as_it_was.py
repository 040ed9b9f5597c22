"""A treatment restores the model and other files, and refuses bad options before any work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attnscope.commands.treat import arms
from attnscope.commands.treat.arms import restored
from attnscope.commands.treat.remedies import Asked, unused
from attnscope.commands.treat.trained import Kept
from attnscope.core.errors import RefusalError
from attnscope.core.progress import silent
from attnscope.core.registry import variants
from attnscope.hf.exchanging.plan import sorted_settings
from attnscope.hf.installed import refuse_taken


def test_clear_removes_files_of_training_and_no_others(tmp_path: Path) -> None:
    for name in ("control.safetensors", "treated.json", "thesis.txt"):
        (tmp_path / name).write_text("x")
    Kept(tmp_path, resume=False).clear()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_running_means_and_modes_are_restored() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train()
    model[0].eval()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    with restored(model, dict(model.named_parameters())):
        model.train()
        model(torch.arange(8.0).reshape(4, 2))
        assert not torch.equal(model.state_dict()["1.running_mean"], before["1.running_mean"])
        model.eval()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert [module.training for module in model] == [False, True]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gain": "abc"}, "gain of gated_output must be a number"),
        ({"gain": True}, "gain of gated_output must be a number"),
        ({"how": "headwse"}, "choose elementwise or headwise"),
    ],
)
def test_settings_of_another_kind_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusalError, match=said):
        sorted_settings(variants()["gated_output"], given)
    assert sorted_settings(variants()["gated_output"], {"gain": 1, "how": "headwise"}) == (
        {"how": "headwise"},
        {"gain": 1},
    )


def test_a_folder_with_files_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    refuse_taken(tmp_path)
    refuse_taken(tmp_path / "new")
    (tmp_path / "model.safetensors").write_text("x")
    with pytest.raises(RefusalError, match="not an empty folder"):
        refuse_taken(tmp_path)


def test_a_model_whose_loss_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "sequence_losses", lambda *_: (1.0, math.nan))
    with pytest.raises(RefusalError, match="The treated model has a loss on held-out text that is not finite"):
        arms.measured_arm.__wrapped__(None, None, "the treated model", silent)  # type: ignore[attr-defined]


def test_note_on_ignored_training_options() -> None:
    asked = Asked(remedy="auto", steps=5, rate=1e-4)
    assert unused(asked, "temperature") == ("temperature trains nothing: `steps=`, `rate=` had no effect.",)
    assert unused(Asked(remedy="auto"), "temperature") == ()
