"""Pairs of findings of two surveys: which are paired, and the status of each pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnscope.commands.compare.paired_findings import FindingChange, Status, identity, paired_findings
from attnscope.core.finding import Finding, Severity
from attnscope.core.registry import findings


def made(kind: str = "uniform_heads", severity: Severity = "note", heads: int = 4, **more: Any) -> Finding:
    details = {"site": "self", "measure": "entropy", **more.pop("details", {})}
    layers = more.pop("layers", (0,))
    given = {"value": 0.97, "threshold": 0.95, "threshold_name": "uniform_entropy", "stack": "decoder", **more}
    return Finding(
        kind=kind,
        severity=severity,
        layers=layers,
        heads=tuple((0, head) for head in range(heads)),
        sentence=f"{heads} heads.",
        citation="",
        advice="",
        details=details,
        **given,
    )


def only(before: Finding | None, after: Finding | None) -> FindingChange:
    (pair,) = paired_findings([before] if before else [], [after] if after else [])
    return pair


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (made(heads=4), made(heads=24, severity="to_know"), "worse"),
        (made(heads=24, severity="to_know"), made(heads=4), "better"),
        (made(heads=4), made(heads=5), "worse"),
        (made(heads=5), made(heads=4), "better"),
        (made(severity="wrong", heads=2), made(severity="to_know", heads=9), "better"),  # severity decides first
        (made(), made(), "same"),
        (made(value=0.96), made(value=0.99), "same"),  # less than a tenth
        (made(layers=(0,)), made(layers=(1,)), "changed"),
        (None, made(), "new"),
        (made(), None, "gone"),
        (made("previous_token_heads", heads=3), made("previous_token_heads", heads=9), "changed"),
        (made("identity_heads", heads=3), made("identity_heads", heads=3), "same"),
    ],
)
def test_trend_of_a_pair(before: Finding | None, after: Finding | None, status: Status) -> None:
    assert only(before, after).trend == status


WRONG, TO_KNOW = made(severity="wrong"), made(severity="to_know")


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (None, WRONG, "new"),
        (WRONG, None, "gone"),
        (TO_KNOW, WRONG, "worse"),
        (WRONG, TO_KNOW, "better"),
        (WRONG, made(severity="wrong", heads=9), "changed"),  # as wrong as before
        (WRONG, WRONG, "same"),
        (None, TO_KNOW, "changed"),
        (TO_KNOW, None, "changed"),
        (made(heads=4), made(heads=24, severity="to_know"), "changed"),
        (made(heads=24, severity="to_know"), made(heads=4), "changed"),
        (None, made(), "changed"),
        (made(), made(), "same"),
    ],
)
def test_only_wrong_findings_get_worse_or_better(before: Finding | None, after: Finding | None, status: Status) -> None:
    assert only(before, after).status == status


@pytest.mark.parametrize(
    ("threshold", "old", "new", "status"),
    [
        (100.0, 1000.0, 2000.0, "worse"),  # further above
        (100.0, 2000.0, 1000.0, "better"),
        (0.1, 0.05, 0.01, "worse"),  # further below
        (0.1, 0.01, 0.05, "better"),
        (100.0, 1000.0, 1100.0, "same"),
        (0.0, float("inf"), 3.0, "same"),  # cannot be compared
    ],
)
def test_numbers_count_by_their_side_of_the_threshold(threshold: float, old: float, new: float, status: Status) -> None:
    before = made("massive_activation", heads=0, value=old, threshold=threshold)
    assert only(before, replace(before, value=new)).trend == status


def test_numbers_of_other_thresholds_are_not_compared() -> None:
    by_size = made("collapse", heads=0, value=0.05, threshold=0.1, threshold_name="collapse_residual")
    by_fall = replace(by_size, value=12.0, threshold=10.0, threshold_name="collapse_fall")
    assert only(by_size, by_fall).status == "same"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (made(), made(severity="wrong", heads=9, value=3.0), True),
        (made(), made(stack="encoder"), False),
        (made(), made(details={"site": "cross"}), False),
        (made("alarm"), made("alarm", details={"measure": "spike"}), False),
        (made(), made(details={"measure": "spike"}), True),
        (made("nonfinite"), made("nonfinite", details={"site": "stream"}), True),
        (made("nonfinite"), made("nonfinite", details={"weights": ["w"]}), False),
        (
            made("massive_activation", details={"step": "up"}),
            made("massive_activation", details={"step": "down"}),
            False,
        ),
    ],
)
def test_identity_of_findings(one: Finding, other: Finding, same: bool) -> None:
    assert (identity(one) == identity(other)) is same


def test_several_of_one_identity_are_matched_by_place_then_in_order() -> None:
    first, second, third = (made("massive_activation", heads=0, layers=(n,)) for n in (2, 5, 9))
    pairs = {
        (p.before and p.before.layers, p.after and p.after.layers): p.status
        for p in paired_findings([first, second], [second, third])
    }
    assert pairs == {((5,), (5,)): "same", ((2,), (9,)): "changed"}
    statuses = [p.status for p in paired_findings([first], [first, third])]
    assert statuses == ["changed", "same"]


def test_the_worst_come_first_and_every_finding_is_there_once() -> None:
    before = [made("sink", "to_know", 9), made("collapse", "wrong", 0, layers=(1, 2)), made("identity_heads")]
    after = [made("sink", "to_know", 9), made("uniform_heads"), made("entropy_collapse", "wrong")]
    pairs = paired_findings(before, after, survey=3)
    assert [(p.kind, p.status) for p in pairs] == [
        ("entropy_collapse", "new"),
        ("collapse", "gone"),
        ("uniform_heads", "changed"),
        ("identity_heads", "changed"),
        ("sink", "same"),
    ]
    assert {p.survey for p in pairs} == {3}
    assert [p.kind for p in pairs if p.regressed("to_know")] == ["entropy_collapse"]
    assert pairs[0].to_json()["after"]["kind"] == "entropy_collapse"


def test_a_finding_is_its_sentence() -> None:
    assert str(made(heads=3)) == "3 heads."


def test_kinds_that_only_say_what_heads_do_are_neutral() -> None:
    assert {n for n, k in findings().items() if k.neutral} == {
        "drained_sinks",
        "identity_heads",
        "induction_heads",
        "media_ignored",
        "previous_token_heads",
        "sink_elsewhere",
    }
