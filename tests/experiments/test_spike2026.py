"""`spike2026`, small enough to run in every test; its closed forms, each against a way that is slower."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import Bare
from attnscope.experiments.spike2026 import CLAIMS, spike2026
from attnscope.trials.remedy_arms import PLAIN, REMEDIES, key

QUICK = spike2026.presets["quick"]
TINY = replace(
    QUICK,
    growth=replace(QUICK.growth, steps=2, rows=32, held=4, batch=4, tokens=8, width=16, hidden=8),
    form_width=8,
    metric_tokens=8,
    pocket=(1, 16),
)


def test_every_arm_is_trained_on_the_same_rows_from_the_same_seed() -> None:
    found = spike2026.run(TINY, (0,), Bare())
    grown = [one for one in found.records if one["part"] == "grown"]
    assert [one["arm"] for one in grown][: len(REMEDIES)] == list(REMEDIES)
    assert len({one["floor"] for one in grown if one["arm"] in REMEDIES}) == 1
    assert len({one["loss"] for one in grown if one["arm"] in REMEDIES}) == len(REMEDIES)


def test_closed_forms_hold_at_any_size() -> None:
    """The claims that are arithmetic are reproduced by a run of two steps too."""
    found = spike2026.run(replace(TINY, form_width=64, metric_tokens=50), (0,), Bare())
    verdicts = {claim.name: claim.verdict for claim in spike2026.judged(found)}
    for name in ("swiglu_is_a_quadratic_form", "rms_norm_is_bounded", "spike_makes_tokens_equal", "sink_metric"):
        assert verdicts[name] == "reproduced", name


def test_a_limit_that_is_not_the_papers_says_so() -> None:
    for claim in CLAIMS:
        trained = any(f"_{key(arm)}" in bound.quantity for bound in claim.holds for arm in REMEDIES)
        assert not trained or "direction only" in claim.expected, claim.name
    assert PLAIN in REMEDIES
