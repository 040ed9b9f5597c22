"""`spike2026`, small enough to run in every test; its closed forms, each against a slower computation."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from attnscope.core.experiment import Result, UnsavedSession, median
from attnscope.papers.experiments.spike2026 import CLAIMS, other_seeds, spike2026
from attnscope.papers.trials.remedy_arms import OTHERS, PLAIN, REMEDIES, above_half, ends, key
from attnscope.papers.trials.spike_forms import STRENGTHS, planted, spread

QUICK, FULL = spike2026.presets["quick"], spike2026.presets["paper"]
TINY = replace(
    QUICK,
    growth=replace(QUICK.growth, steps=2, rows=32, held=4, batch=4, tokens=8, width=16, hidden=8),
    form_width=8,
    metric_tokens=8,
    pocket=(1, 16),
)

OF_ALL_SEEDS = r"^(least|largest)_(sink_rate|spike_ratio|loss)_|_of_pre_norm_of_other_seeds$"


@pytest.fixture(scope="module")
def found() -> Result:
    return spike2026.run(replace(TINY, form_width=64, metric_tokens=50), (0,), UnsavedSession())


def test_every_arm_is_trained_on_the_same_rows_from_the_same_seed(found: Result) -> None:
    grown = [one for one in found.records if one["part"] == "grown"]
    assert [one["arm"] for one in grown][: len(REMEDIES)] == list(REMEDIES)
    assert len({one["floor"] for one in grown if one["arm"] in REMEDIES}) == 1
    assert len({one["loss"] for one in grown if one["arm"] in REMEDIES}) == len(REMEDIES)


def test_closed_forms_hold_at_any_size(found: Result) -> None:
    """Claims that are pure arithmetic are reproduced even by a run of two steps."""
    verdicts = {claim.name: claim.verdict for claim in spike2026.judged(found)}
    for name in ("swiglu_is_a_quadratic_form", "spike_makes_tokens_equal", "sink_metric"):
        assert verdicts[name] == "reproduced", name


def test_each_need_changes_one_thing() -> None:
    """A `head_width` that equals the default counts as no change: only the number of heads differs."""
    base = asdict(FULL.growth)
    for arm, changes in FULL.needed.items():
        changed = {name for name in changes if base[name] != changes[name]}
        width = changes.get("head_width")
        if width is not None and width == FULL.growth.width // FULL.growth.heads:
            changed -= {"head_width"}
        assert len(changed) == 1, arm


def test_where_nothing_was_learned_no_remedy_is_judged(found: Result) -> None:
    """Nothing is learned in two steps; with eight keys, uniform attention already counts as a sink (H_8/8)."""
    assert median(found.measured["excess_loss_of_pre_norm"]) > 0.15
    compared = ("_lowers_", "_leaves_", "_removes_", "_has_more_", "_need_", "_cost_")
    for claim in spike2026.judged(found):
        if any(word in claim.name for word in compared):
            assert claim.verdict == "not run", claim.name


def test_sinks_are_compared_by_difference() -> None:
    grew = [{"arm": arm, "sink_rate": rate} for arm, rate in ((PLAIN, 0.0), ("x", 0.0), (PLAIN, 0.5), ("x", 0.1))]
    assert above_half(grew, "x", "sink_rate") == pytest.approx([0.0, -0.15])


def test_a_limit_that_is_not_the_papers_says_so() -> None:
    for claim in CLAIMS:
        trained = any(f"_{key(arm)}" in bound.quantity for bound in claim.holds for arm in REMEDIES)
        assert not trained or "direction only" in claim.expected, claim.name
    assert PLAIN in REMEDIES


def test_sinks_and_spikes_must_grow_in_other_seeds(found: Result) -> None:
    """A condition on the compared control itself would select runs in which it was large by chance."""
    compared = [claim for claim in CLAIMS if any("_of_other_seeds" in bound.quantity for bound in claim.given)]
    assert len(compared) == 7
    for claim in CLAIMS:
        asked = {bound.quantity for bound in claim.given if not bound.quantity.startswith("excess_loss_")}
        assert asked <= {f"{what}_of_{key(OTHERS)}" for what in ("sink_rate", "spike_over_median")} | {
            "larger_sink_rate_of_both_widths"
        }, claim.name
    grown = [one for one in found.records if one["part"] == "grown"]
    seeds = {arm: {one["seed"] for one in grown if one["arm"] == arm} for arm in (PLAIN, OTHERS)}
    assert len(seeds[OTHERS]) == TINY.others
    assert seeds[PLAIN].isdisjoint(seeds[OTHERS])
    assert other_seeds((0, 7, 3), 2) == [8, 9, 10, 11, 12, 13]


def test_one_opposite_seed_misses_a_claim_on_the_sign() -> None:
    claim = next(claim for claim in CLAIMS if claim.name == "dynamic_tanh_has_more_sinks")
    name = "sink_rate_added_by_dynamictanh"
    stands = {bound.quantity: [bound.limit] for bound in claim.given}
    for rates, verdict in (([0.2, 0.3, 0.4], "reproduced"), ([-0.1, 0.3, 0.4], "not reproduced")):
        assert claim.judged({name: rates, **ends({name: rates}), **stands}).verdict == verdict


def test_it_is_the_norm_that_makes_tokens_equal() -> None:
    """A cosine would be the same with and without a norm."""
    tokens = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = [(a - b).square().sum() for k, a in enumerate(tokens) for b in tokens[:k]]
    assert spread(tokens) == pytest.approx(float(torch.stack(pairs).mean().sqrt()), rel=1e-12)
    with_norm, without = (
        planted(64, torch.Generator().manual_seed(1), norm)["planted_spreads"] for norm in (None, nn.Identity())
    )
    assert without == [1.0] * len(STRENGTHS)
    assert with_norm[-1] < 0.02
