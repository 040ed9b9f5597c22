"""The page of families lists every family that is tested, with the route the probe takes."""

from __future__ import annotations

from pathlib import Path

from tests.hf.families import FAMILIES, REFUSED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"


def test_every_family_is_listed_with_its_route() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
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
