"""Other tools beside attnscope on the planted faults: how they are judged, and that the page says what was measured."""

from __future__ import annotations

import json
import math

import pytest
import torch

from bench.faults import peers
from bench.faults.judge import PAGE
from bench.faults.judge import RESULT as JUDGED
from bench.faults.peer_tools import blocks_of, changed_tensors, raised, worse

PATHS = tuple(f"model.h.{number}" for number in range(12))


def test_a_block_is_named_by_what_is_inside_it() -> None:
    assert blocks_of(["model.h.1.attn.c_attn.weight"], PATHS) == (1,)  # and not 10 or 11
    assert blocks_of(["model.h.10", "model.h.2.mlp"], PATHS) == (2, 10)
    assert blocks_of(["model.wte.weight", "model", "lm_head"], PATHS) == ()


def test_a_tensor_differs_by_number_type_or_name() -> None:
    before = {"same": torch.ones(2), "number": torch.ones(2), "type": torch.ones(2), "gone": torch.ones(2)}
    after = {
        "same": torch.ones(2),
        "number": torch.tensor([1, 1 + 1e-6]),
        "type": torch.ones(2, dtype=torch.bfloat16),
        "new": torch.ones(2),
    }
    assert sorted(changed_tensors(before, after)) == ["gone", "new", "number", "type"]
    assert changed_tensors(before, before) == []


def test_the_loss_is_worse_only_if_it_surely_rose() -> None:
    before = [1.0, 2.0, 3.0, 4.0]
    assert worse(before, [1.1, 2.2, 3.1, 4.2])
    assert not worse(before, [0.9, 1.8, 2.9, 3.8])  # it surely fell
    assert not worse(before, [1.5, 1.6, 3.5, 3.6])
    assert not worse(before, before)
    assert worse(before, [1.0, math.nan, 3.0, 4.0])


def test_the_rise_is_weighted_by_predicted_tokens() -> None:
    assert raised([1.0, 1.0], [2.0, 1.0], [1, 3]) == pytest.approx(0.25)
    assert raised([1.0, 1.0], [2.0, math.inf], [1, 3]) is None


def _theirs(name: str, kind: str, rise: float | None, layer: int | None, says: dict[str, list[object]]) -> peers.Row:
    known = {"subject": "some", "name": name, "seed": 0, "kind": kind, "layer": layer, "grade": "small"}
    return {**known, "raised": rise, "says": {tool: [False, []] for tool in peers.TOOLS} | says}


def _ours(name: str, layer: int | None, *, scan: bool, compare: bool, located: bool, worse: bool) -> peers.Row:
    found = {"scan": scan, "scan_located": False, "compare": compare, "compare_located": located}
    return {"subject": "some", "name": name, "seed": 0, "layer": layer, **found, "compare_worse": worse}


THEIRS = [
    _theirs("loud", "mlps", 0.5, 1, {"weights": [True, [1]], "loss": [True, []], "interpkit_diff": [None, [1]]}),
    _theirs("swapped_blocks", "weights", None, 1, {"weights": [True, [1, 2]], "ww": [True, [2]]}),
    _theirs("harmless", "mlps", 0.01, 1, {"weights": [True, [1]]}),
    _theirs("finetuned", "control", -0.1, None, {"weights": [True, [0, 1, 2]], "interpkit_diff": [None, [2]]}),
    _theirs("elsewhere", "mlps", 0.5, 1, {}),  # attnscope was not asked
]
OURS = [
    _ours("loud", 1, scan=True, compare=True, located=True, worse=False),
    _ours("swapped_blocks", 1, scan=False, compare=True, located=False, worse=True),
    _ours("harmless", 1, scan=False, compare=False, located=False, worse=False),
    _ours("finetuned", None, scan=False, compare=True, located=False, worse=False),
]


def test_all_tools_are_judged_alike_on_the_same_cases() -> None:
    lines = peers.table(peers.joined(THEIRS, OURS))
    assert lines[0].startswith(
        "2 faults that raise the loss by 0.05 nats or more, 2 of them in one block, and 1 control"
    )
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in lines[4:]}
    shares = {name: [cell.rpartition("; ")[2].rstrip(")") for cell in row] for name, row in cells.items()}
    assert shares["attnscope `compare`, *worse* or a block"] == ["yes", "2 of 2", "1 of 2", "1 of 1", "0 of 1"]
    assert shares["attnscope `compare`, *worse* alone"] == ["yes", "1 of 2", "0 of 2", "0 of 1", "0 of 1"]
    assert shares["attnscope `scan`"] == ["no", "1 of 2", "0 of 2", "0 of 1", "0 of 1"]
    assert shares["diff of the weights"] == ["yes", "2 of 2", "2 of 2", "1 of 1", "1 of 1"]
    assert shares["loss on the same windows"] == ["yes", "1 of 2", "names none", "0 of 1", "0 of 1"]
    assert shares["WeightWatcher, warnings"] == ["no", "1 of 2", "1 of 2", "0 of 1", "0 of 1"]  # the other block
    ranked = shares["interpkit `diff`, first of its ranking"]
    assert ranked == ["yes", "no verdict", "1 of 2", "no verdict", "no verdict"]


def test_a_fault_in_another_place_is_not_compared() -> None:
    with pytest.raises(SystemExit, match="another place"):
        peers.joined(THEIRS[:1], [{**OURS[0], "layer": 0}])


def test_the_page_says_what_was_measured() -> None:
    ours = json.loads(JUDGED.read_text(encoding="utf-8"))["cases"]
    page = PAGE.read_text(encoding="utf-8")
    assert page == peers.with_table(page, peers.joined(peers.load(), ours)), "run `python -m bench.faults judge`"
