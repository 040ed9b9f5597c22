"""The page of families lists every tested family, and the outcome of every model type of transformers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from tests.hf.families import FAMILIES, REFUSED
from tools.every_family import COMMANDS, outcomes
from tools.every_type_page import HEADING, general, read_table, word_of
from tools.explained import ALLOWED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"
SAMPLE = ("llama", "longformer", "mamba", "patchtsmixer")
NO_SOFTMAX = ("no softmax attention", "no softmax over keys", "gates over channels")


@cache
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def reasons() -> dict[str, str]:
    lines = text()[text().index("### Reasons") :].splitlines()
    return {f"[{n}]": words for n, _, words in (line.partition(". ") for line in lines) if n.isdigit()}


def test_every_family_is_listed_with_its_route() -> None:
    first = text()[: text().index(HEADING)]
    rows = [line.strip("| ").split(" | ") for line in first.splitlines() if line[:1] == "|"]
    listed = {cells[0]: cells for cells in rows[2:]}
    assert list(listed) == [family.name for family in (*FAMILIES, *REFUSED)]
    for family in FAMILIES:
        cells = listed[family.name]
        assert cells[2] == family.route
        assert cells[3] == f"{family.heads} / {family.kv_heads}"
        assert cells[4] in {family.norm, "no blocks"}
        assert cells[6] == family.weights
        assert float(cells[7]) < 1e-6
    assert all(listed[family.name][2] == "refused" for family in REFUSED)


def test_every_type_of_transformers_is_listed_once() -> None:
    missing = text()[text().index("### Not built") :].splitlines()
    left_out = [name for line in missing if line[:2] == "- " for name in line.split(": ")[1].rstrip(".").split(", ")]
    assert sorted([*read_table(text()), *left_out]) == sorted(CONFIG_MAPPING)


def test_every_type_has_an_outcome_and_nearly_all_with_softmax_are_verified() -> None:
    table, why = read_table(text()), reasons()
    cells = [row[command] for row in table.values() for command in COMMANDS]
    assert {word_of(cell) for cell in cells} <= {"verified", "exact", "done", "ran", "refused", "stopped"}
    assert {cell.split()[-1] for cell in cells if word_of(cell) in ("ran", "refused", "stopped")} <= why.keys()
    scanned = {name: row["scan"] for name, row in table.items()}
    without = {n for n, cell in scanned.items() if any(w in why.get(cell.split()[-1], "") for w in NO_SOFTMAX)}
    verified = {name for name, cell in scanned.items() if word_of(cell) == "verified"}
    assert not without & verified
    assert len(verified) >= 0.95 * len(table.keys() - without)
    # Verification allows 1e-4 in float32; the recorded differences are rounding.
    assert all(float(scanned[name].split()[1].rstrip(",")) < 1e-5 for name in verified)


def test_recorded_explanations_differ_by_rounding_only() -> None:
    explained = [row["explain"] for row in read_table(text()).values() if word_of(row["explain"]) == "verified"]
    assert len(explained) > 300
    assert all(float(cell.split()[1].rstrip(",")) < ALLOWED for cell in explained)


@pytest.mark.parametrize("model_type", SAMPLE)
def test_sample_of_types_has_the_recorded_outcome(model_type: str) -> None:
    row, why = read_table(text())[model_type], reasons()
    said = {name: words for piece in outcomes(model_type) for name, words in piece.items()}
    assert said["built"] == said["training"].replace("done", "yes") == "yes"
    assert row["class"] == f"`{said['class']}`"
    for command in COMMANDS:
        assert word_of(row[command]) == word_of(said[command]), said[command]
        if word_of(said[command]) in ("ran", "refused"):
            assert why[row[command].split()[-1]] == general(said[command].partition(" ")[2], said["class"])
    assert ("stream only" in row["scan"]) == any("stream only" in note for note in said.get("notes", ()))
