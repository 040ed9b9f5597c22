"""The map of head widths: every head is drawn at its position, and heads without a width are crossed out instead of
coloured."""

from __future__ import annotations

from attnscope.commands.head_widths.chart import chart
from tests.commands.samples import sample_head_widths


def test_every_head_is_on_the_map_and_the_unknown_one_has_no_number() -> None:
    document = chart(sample_head_widths()).to_dict()
    (rows,) = document["datasets"].values()
    known = {(row["layer"], row["head"]): row["needs"] for row in rows}
    assert known == {(0, 0): 4, (0, 1): 4, (1, 0): 33, (1, 1): None}
    assert rows[0]["label"] == "block 0, head 0: width 4 of 32"
    (panel,) = document["vconcat"]
    coloured, crossed = panel["layer"]
    assert "color" in coloured["encoding"]
    assert "color" not in crossed["encoding"]
    assert coloured["encoding"]["color"]["scale"]["domain"] == [1, 33]
    assert document["title"]["text"] == "How wide must these heads be?"
