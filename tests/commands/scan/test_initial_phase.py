"""Configurations driven into each phase: what is predicted from the spread of logits is what is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import GPT2Config

import attnscope


def scanned(folder: Path, spread: float):
    """Logits of normed tokens of width d and weights of deviation w have deviation d w^2, whatever the head's size."""
    config = GPT2Config(
        vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4, initializer_range=(spread / 64) ** 0.5
    )
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["GPT2LMHeadModel"]}))
    return attnscope.scan(folder, random_init=True, measures="entropy", samples=4, max_tokens=64)


@pytest.mark.parametrize(("spread", "phase"), [(0.03, "uniform"), (1.3, "healthy"), (8.0, "frozen")])
def test_a_configuration_starts_where_its_weights_put_it(tmp_path, spread, phase):
    survey = scanned(tmp_path, spread)
    (finding,) = [f for f in attnscope.diagnose(survey) if f.kind == "initial_phase"]
    assert finding.details["phase"] == phase
    predicted, measured = (finding.details[f"{word}_entropy_share"] for word in ("predicted", "measured"))
    if phase != "frozen":
        # The limit of long rows; r of each row is noisy at up to 64 keys, and ln n small: a tenth of the largest.
        assert predicted == pytest.approx(measured, abs=0.1)
    else:
        assert measured < 0.5
        squares = [survey.values("logit_phase", part).mean() for part in ("predicted_squares", "squares")]
        assert squares[0] == pytest.approx(squares[1], abs=0.15)


def test_weights_that_were_trained_are_not_asked():
    survey = attnscope.scan("pocket", measures="entropy", samples=1, max_tokens=16)
    assert set(survey.cards) == {"entropy"}
