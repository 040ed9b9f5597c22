"""Pruning finds heads that are known to be useless, to back each other up, or to be needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnscope.commands.treat.prune_words import backed_up, heads_table, verdict, what_stays
from attnscope.commands.treat.record import Treatment
from attnscope.commands.treat.run import treat
from attnscope.commands.treat.words import document
from attnscope.hf.loading.load import Loaded
from tests.commands.treat.planted_heads import HEADS, counted, counting

LOW, UPPER = (0, 1, 2, 3), (4, 5, 6, 7)
NEEDED = (0, 0)
SMALL: dict[str, Any] = {"remedy": "prune", "samples": 16, "max_tokens": 12, "settings": {"prompts": 4}}


def with_pair(other: tuple[int, int]) -> Loaded:
    """Two blocks: one head is needed, (0, 1) and `other` back each other up, and five heads write nothing."""
    return counting(2, {NEEDED: LOW, (0, 1): UPPER, other: UPPER})


@pytest.fixture(scope="module", params=[(0, 2), (1, 2)], ids=["same block", "two blocks"])
def planted(request: pytest.FixtureRequest) -> tuple[tuple[int, int], Loaded]:
    return request.param, with_pair(request.param)


@pytest.fixture(scope="module")
def within_budget(planted: tuple[tuple[int, int], Loaded]) -> Treatment:
    return treat(planted[1], counted(), keep_loss=0.05, **SMALL)


def test_heads_that_write_nothing_are_named_first_and_cost_nothing() -> None:
    used = {NEEDED, (0, 1), (0, 2)}
    useless = [(block, head) for block in range(2) for head in range(HEADS) if (block, head) not in used]
    found = treat(with_pair((0, 2)), counted(), heads=len(useless), **SMALL)
    assert list(found.removed) == useless
    assert (found.loss.low, found.loss.mean, found.loss.high) == (0.0, 0.0, 0.0)
    assert found.arms["treated"].losses == found.arms["before"].losses
    assert verdict(found).sentence == "0.3, 1.0, 1.1, 1.2, 1.3 can go: held-out loss 0 (0 to 0)."


def test_of_two_heads_that_back_each_other_up_one_goes(
    planted: tuple[tuple[int, int], Loaded], within_budget: Treatment
) -> None:
    found, pair = within_budget, {(0, 1), planted[0]}
    assert found.budget_kept
    assert len(found.removed) == 2 * HEADS - 2
    assert NEEDED not in found.removed
    assert len(pair & set(found.removed)) == 1
    (left,) = pair - set(found.removed)
    (one,) = backed_up(found)
    assert (one.place, {one.partner}) == (left, pair & set(found.removed))
    assert one.alone < 0.01
    assert min(one.together, one.among) > 0.5
    assert any("back each other up" in line for line in what_stays(found))


def test_an_order_by_single_effects_would_take_both(
    planted: tuple[tuple[int, int], Loaded], within_budget: Treatment
) -> None:
    """The pair comes before the needed head by single effects, and last by measured sets."""
    assert within_budget.pruning is not None
    alone = {cost.place: cost.alone for cost in within_budget.pruning.costs}
    assert max(alone[0, 1], alone[planted[0]]) < 0.01
    assert alone[NEEDED] > 0.5
    effect = next(order for order in within_budget.pruning.orders if order.name == "effect")
    assert set(effect.heads[-2:]) < {NEEDED, (0, 1), planted[0]}
    assert NEEDED in effect.heads[-2:]


def test_counts_on_the_page_are_those_of_the_record(within_budget: Treatment) -> None:
    found = within_budget
    assert found.pruning is not None
    rows = heads_table(found).rows
    assert len(rows) == found.pruning.total == 2 * HEADS
    gone = [row[0] for row in rows if row[1] == "goes"]
    assert gone == [f"{block}.{head}" for block, head in found.removed]
    assert len(gone) == found.pruning.removed
    assert what_stays(found)[0].startswith(f"{found.pruning.total - found.pruning.removed} heads stay. ")
    page = document(found)
    assert not any(section.cards for section in page.sections)  # sentences of findings count all heads
    (findings,) = (section for section in page.sections if section.link == "Findings")
    told = [row for table in findings.tables for row in table.rows]
    moved = [outcome for outcome in found.outcomes if outcome.judgement != "no effect"]
    assert len(told) == len(moved)
    assert f"{len(moved) or 'None'} of {len(found.outcomes)} finding" in findings.sentences[0]


def test_a_budget_that_no_head_keeps_is_said_in_the_first_sentence(tmp_path: Path) -> None:
    every = {(0, head): (2 * head, 2 * head + 1) for head in range(HEADS)}
    found = treat(counting(1, every), counted(), keep_loss=0.05, save=tmp_path / "model", **SMALL)
    assert found.removed == ()
    assert found.arms["treated"].losses == found.arms["before"].losses
    said = verdict(found)
    assert said.level == "warning"
    assert said.sentence.startswith(
        "No head is shown to be safe to remove. The budget of 0.05 nats per token is not met: on the checking"
    )
    assert not (tmp_path / "model").exists()
    again = Treatment.from_json(found.document())
    assert again.sentences() == found.sentences()


def test_interrupted_pruning_resumes_to_the_same_record(tmp_path: Path) -> None:
    loaded = with_pair((1, 2))

    def stop(stage: str, done: int, total: int, tokens: int | None = None) -> None:
        if stage.startswith("held-out loss without heads") and done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        treat(loaded, counted(), keep_loss=0.05, checkpoint=tmp_path, progress=stop, **SMALL)
    assert (tmp_path / "removals.json").exists()
    resumed = treat(loaded, counted(), keep_loss=0.05, checkpoint=tmp_path, resume=True, **SMALL)
    whole = treat(loaded, counted(), keep_loss=0.05, **SMALL)
    assert resumed.pruning is not None
    assert whole.pruning is not None
    assert resumed.removed == whole.removed
    assert resumed.pruning.curve == whole.pruning.curve
    assert resumed.pruning.costs == whole.pruning.costs
    assert resumed.pruning.passes < whole.pruning.passes / 2
