"""`early_warning`, small enough to run in every test, and its rules on losses that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnscope.commands.watch.alarm_judge import LOG, muted_log
from attnscope.papers.experiments.early_warning import TWIN, early_warning, judged
from attnscope.papers.trials.failing_runs import WAYS, Size, failure_step

TINY = replace(
    early_warning.presets["quick"], size=Size(layers=1, width=8, heads=2, tokens=8, sequences=2, steps=4, every=2)
)
OF_ALL_SEEDS = "share$|in_ten$"


def test_loss_shows_a_failure_at_nan_or_a_fifth_above_its_lowest() -> None:
    assert failure_step({"losses": [3.0, 2.0, 2.3, 2.41]}) == 4
    assert failure_step({"losses": [3.0, float("nan")]}) == 2
    assert failure_step({"losses": [3.0, 2.9, 3.0]}) is None
    assert failure_step({"losses": [3.0, 2.9, 3.0]}, {"losses": [3.0, 2.6, 2.4]}) == 3
    assert failure_step({"losses": [2.0, 1.0, None]}) == 3  # JSON stores NaN as null, so a resumed run reads None


def test_alarms_of_failing_runs_go_only_to_their_record(caplog: pytest.LogCaptureFixture) -> None:
    with muted_log():
        LOG.critical("a made failure")
    LOG.critical("a real one")
    assert [record.message for record in caplog.records] == ["a real one"]


def test_only_warnings_before_the_loss_shows_it_count() -> None:
    def run(way: str, losses: list[float], *alarms: tuple[int, str]) -> dict[str, object]:
        told = [{"step": s, "severity": v, "rule": "r", "ended": False, "sentence": "It rings."} for s, v in alarms]
        return {"way": way, "seed": 0, "losses": losses, "looks": [{"alarms": told}]}

    failing = {way: [3.0, 2.0, 2.0, 4.0] for way in WAYS}
    alarms = dict(zip(WAYS, (((2, "warning"),), ((1, "note"), (4, "critical")), ()), strict=True))
    runs = {way: run(way, failing[way], *alarms[way]) for way in WAYS}
    runs["healthy"], runs[TWIN] = run("healthy", [3.0] * 4, (1, "note")), run(TWIN, [3.0] * 4, (3, "warning"))
    found = {one["way"]: one for one in judged(runs)}
    assert [found[way]["announced"] for way in WAYS] == [True, False, False]
    assert [found[way]["lead"] for way in WAYS] == [2, 0, 0]
    assert found["healthy"]["alarm"] is None
    assert found[TWIN]["alarm"] == 3
