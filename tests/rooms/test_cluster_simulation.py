"""The simulation behind docs/capacity_planning.md equals exact results where these are known, and the page shows it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.capacity_tables import hours, size, with_tables
from bench.cluster_simulation import PAGE, RESULTS, Assumptions, Cluster, Job, on_paper

NEVER = 1e9
CALM = replace(Assumptions(), worker_days_to_failure=NEVER, driver_days_to_failure=NEVER, spread=0.0, stragglers=0.0)
JOB = Job(
    shards=40, shard_seconds=100.0, workers=4, start_seconds=10.0, load_seconds=5.0, loads_at_once=9, merge_seconds=1.0
)


def test_without_randomness_the_simulation_equals_arithmetic() -> None:
    """Each worker starts and does ten shards; the last four are merged in parallel."""
    found = Cluster(JOB, CALM, 0).run()
    assert found.hours * 3600 == pytest.approx(10 + 5 + 10 * 100 + 1)
    assert (found.redone, found.worker_deaths, found.starts) == (0, 0, 4)
    assert found.busy == pytest.approx(1000 / 1015)


def test_workers_wait_for_a_store_that_serves_one_at_a_time() -> None:
    """Reading takes 200 s, one worker at a time, and a shard 100 s: when the second worker has read, the first has done
    two shards, and the third and fourth are done 100 s later."""
    found = Cluster(replace(JOB, loads_at_once=1, load_seconds=200.0, shards=4), CALM, 0).run()
    assert found.hours * 3600 == pytest.approx(10 + 2 * 200 + 100 + 1)


def test_slow_merger_determines_the_total_time() -> None:
    found = Cluster(replace(JOB, merge_seconds=1000.0), replace(CALM, mergers=1), 0).run()
    assert found.hours * 3600 == pytest.approx(115 + 40 * 1000)


@pytest.mark.parametrize("seed", range(3))
def test_every_shard_counts_once_whichever_process_dies(seed: int) -> None:
    stormy = replace(Assumptions(), worker_days_to_failure=0.02, driver_days_to_failure=0.05)
    found = Cluster(replace(JOB, shards=400, loads_at_once=2), stormy, seed).run()
    assert found.done == [1] * 400
    assert found.worker_deaths > 0
    assert found.driver_deaths > 0
    assert found.largest_loss <= 1
    assert found.redone <= found.worker_deaths + JOB.workers * found.driver_deaths
    again = Cluster(replace(JOB, shards=400, loads_at_once=2), stormy, seed).run()
    assert again == found


def test_formula_and_simulation_agree_without_contention() -> None:
    job = replace(JOB, shards=4000, workers=20)
    assert on_paper(job, Assumptions()) == pytest.approx(Cluster(job, Assumptions(), 1).run().hours, rel=0.05)


def test_capacity_page_is_up_to_date() -> None:
    page, found = PAGE.read_text(), json.loads(RESULTS.read_text())
    assert with_tables(page, found) == page
    assert len(found["jobs"]) == 8
    assert max(run["workers"] for job in found["jobs"] for run in job["runs"]) == 1000


def test_words_for_sizes_and_times() -> None:
    assert (size(1.5e9), size(20)) == ("1.5 GB", "20 bytes")
    assert (hours(0.5), hours(2), hours(96), hours(24 * 365 * 10)) == ("30 min", "2.0 h", "4.0 days", "10 years")
