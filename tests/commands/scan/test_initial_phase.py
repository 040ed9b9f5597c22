"""Configurations in each phase: the entropy predicted from the spread of logits is the measured one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import GPT2Config

import attnscope


def scanned(folder: Path, spread: float):
    """Scan a model. With normalised tokens of width d and weights of deviation w, logits have deviation d w^2."""
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
        # The prediction holds for long rows. With up to 64 keys r is noisy, so the tolerance is a tenth of the largest
        # entropy.
        assert predicted == pytest.approx(measured, abs=0.1)
    else:
        assert measured < 0.5
        squares = [survey.values("logit_phase", part).mean() for part in ("predicted_squares", "squares")]
        assert squares[0] == pytest.approx(squares[1], abs=0.15)


def test_trained_weights_are_not_measured_for_the_phase():
    survey = attnscope.scan("pocket", measures="entropy", samples=1, max_tokens=16)
    assert set(survey.cards) == {"entropy"}
