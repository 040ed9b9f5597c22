"""Writes the table of measures in docs/scan.md from the catalog.

python tools/measures_table.py            write the table
python tools/measures_table.py --check    exit with 1 where the written table says something else
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from attnscope.core.card import Card
from attnscope.core.registry import measures

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scan.md"
FIRST, LAST = "<!-- measures: written by tools/measures_table.py -->", "<!-- end of measures -->"
SCOPES = {"stream": "residual stream", "attention": "attention", "weights": "weights"}
TRAINING = "training (`attnscope.watch`)"


def measures_table(cards: Iterable[Card]) -> str:
    """One row for what is measured, one column for each set."""
    known = list(cards)
    rows = ["| of | default | deep (`--measures deep`) |", "|---|---|---|"]
    for scope, words in SCOPES.items():
        cells = (
            " ".join(f"`{card.name}`" for card in known if (card.scope, card.group) == (scope, group))
            for group in ("default", "deep")
        )
        rows.append(f"| {words} | {' | '.join(cells)} |")
    training = " ".join(f"`{card.name}`" for card in known if card.scope == "training")
    rows.append(f"| {TRAINING} | {training} | |")
    return "\n".join(rows)


def with_table(text: str, table: str) -> str:
    """The page with this table where its marks are."""
    before, _, rest = text.partition(FIRST)
    _, mark, after = rest.partition(LAST)
    if not mark:
        raise SystemExit(f"{PAGE.name} has lost its marks: put '{FIRST}' and '{LAST}' around the table of measures.")
    return f"{before}{FIRST}\n\n{table}\n\n{mark}{after}"


def main(check: bool) -> int:
    text = PAGE.read_text("utf-8")
    wanted = with_table(text, measures_table(measure.card for measure in measures().values()))
    if check:
        return int(wanted != text)
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
