"""A verdict follows from numbers by a rule that can fail, in every experiment."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.commands.reproduce.words import measured_words
from attnscope.core.experiment import PRESETS, VERDICTS, Bound, Claim, claims, experiment, median
from attnscope.core.registry import experiments

CLAIM = Claim("c", "0000.00000", "x is large", "at least 1", (Bound("x", ">=", 1.0),), (Bound("x", "<=", 0.1),))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([2.0], "reproduced"),
        ([1.0], "reproduced"),
        ([0.5], "not reproduced"),
        ([0.1], "contradicted"),
        ([], "not run"),
        ([None], "not reproduced"),
        ([math.nan, 2.0, 2.0], "not reproduced"),
        ([0.0, 2.0, 3.0], "reproduced"),
    ],
)
def test_verdicts(values: list[float | None], verdict: str) -> None:
    assert CLAIM.judged({"x": values, "other": [0.0]}).verdict == verdict


def test_a_claim_whose_number_is_missing_was_not_run() -> None:
    assert CLAIM.verdict == "not run"
    assert CLAIM.judged({"y": [5.0]}).verdict == "not run"
    two = Claim("c", "p", "s", "e", (Bound("x", ">", 0.0), Bound("y", ">", 0.0)))
    assert two.judged({"x": [1.0]}).verdict == "not run"
    assert two.judged({"x": [1.0], "y": [0.0]}).verdict == "not reproduced"


def test_claim_with_an_unmet_given_bound_is_not_judged() -> None:
    """A ratio to zero, or a comparison of models that learned nothing, supports neither verdict."""
    stands = replace(CLAIM, given=(Bound("learned", ">", 0.2),))
    assert stands.judged({"x": [2.0]}).verdict == "not run"
    for x, verdict in ((2.0, "reproduced"), (0.5, "not reproduced"), (0.0, "contradicted")):
        assert stands.judged({"x": [x], "learned": [0.3]}).verdict == verdict
        for baseline in (0.2, math.nan):
            left = stands.judged({"x": [x], "learned": [baseline]})
            assert left.verdict == "not run"
            assert left.missing == stands.given
            assert measured_words(left)[-1] == "not judged, because that needs learned > 0.2"
    assert not stands.missing


def test_verdict_of_a_claim_cannot_be_set() -> None:
    assert "verdict" not in {field.name for field in fields(Claim)}
    with pytest.raises(AttributeError):
        CLAIM.verdict = "reproduced"  # type: ignore[misc]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=7))
def test_the_order_of_seeds_does_not_matter(values: list[float]) -> None:
    assert CLAIM.judged({"x": values}).verdict == CLAIM.judged({"x": sorted(values)}).verdict
    assert min(values) <= median(values) <= max(values)


@pytest.mark.parametrize("name", list(experiments()))
def test_every_experiment_has_all_its_parts(name: str) -> None:
    one = experiments()[name]
    assert tuple(one.presets) == PRESETS
    assert type(one.presets["quick"]) is type(one.presets["paper"])
    assert one.presets["quick"] != one.presets["paper"]
    assert one.claims
    assert len({claim.name for claim in one.claims}) == len(one.claims)
    assert asdict(one.presets["quick"])
    assert one.summary.endswith(".")
    for claim in one.claims:
        assert claim.holds
        assert claim.verdict == "not run"
        assert claim.paper[4] == "."


@pytest.mark.parametrize("name", list(experiments()))
def test_every_claim_can_hold_and_can_fail(name: str) -> None:
    """Numbers just inside all bounds reproduce a claim, numbers far outside do not, and NaN never does."""
    for claim in experiments()[name].claims:
        inside = {quantity: [_inside(claim, quantity)] for quantity in claim.quantities}
        assert claim.judged(inside).verdict == "reproduced", (claim.name, inside)
        for quantity in {bound.quantity for bound in claim.holds}:
            worse = {bound.relation[0] for bound in claim.holds if bound.quantity == quantity}
            far = -1e9 if worse == {">"} else 1e9
            assert claim.judged({**inside, quantity: [far]}).verdict in VERDICTS[1:3], claim.name
            assert claim.judged({**inside, quantity: [math.nan]}).verdict == "not reproduced", claim.name
        if claim.fails:
            assert not {limit.quantity for limit in claim.given} & {
                limit.quantity for limit in (*claim.holds, *claim.fails)
            }
            outside = {
                **inside,
                **{b.quantity: [b.limit + (1e-9 if b.relation[0] == ">" else -1e-9)] for b in claim.fails},
            }
            assert claim.judged(outside).verdict == "contradicted", (claim.name, outside)


def _inside(claim: Claim, quantity: str) -> float:
    low = [b.limit for b in (*claim.holds, *claim.given) if b.quantity == quantity and b.relation[0] == ">"]
    high = [b.limit for b in (*claim.holds, *claim.given) if b.quantity == quantity and b.relation[0] == "<"]
    if low and high:
        return (max(low) + min(high)) / 2
    if low:
        return max(low) + 1e-9
    return min(high) - 1e-12 if high else 0.0


def test_claims_are_read_from_text() -> None:
    first, second = claims(
        "0000.00000",
        """
        learns: It learns: always,
                on every seed.
            expected: at least .9;
                contradicted at chance
            holds: accuracy >= 0.9, loss < 1e-3; fails: accuracy <= 0.1
            given: baseline > 0.5
        """,
        "other [1111.11111]: S.\n    expected: e\n    holds: x <= -2",
    )
    statement, expected = "It learns: always, on every seed.", "at least .9; contradicted at chance"
    holds = (Bound("accuracy", ">=", 0.9), Bound("loss", "<", 1e-3))
    fails, conditions = (Bound("accuracy", "<=", 0.1),), (Bound("baseline", ">", 0.5),)
    assert first == Claim("learns", "0000.00000", statement, expected, holds, fails, conditions)
    assert second == Claim("other", "1111.11111", "S.", "e", (Bound("x", "<=", -2.0),))


@pytest.mark.parametrize(
    "text",
    [
        "name without a colon",
        "a: No rule.\n    expected: e",
        "a: S.\n    holds: x > 1",
        "a: S.\n  expected: e; holds: x = 1",
    ],
)
def test_text_that_is_not_a_claim_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        claims("0000.00000", text)


def test_missing_presets_are_refused() -> None:
    with pytest.raises(TypeError, match="presets"):
        experiment(title="t", paper="p", summary="s", presets={"quick": 1}, takes={}, seeds={}, claims=())(
            lambda params, seeds, session: None  # type: ignore[arg-type,return-value]
        )
