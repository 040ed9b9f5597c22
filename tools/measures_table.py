"""Write the table of measures in docs/scan.md, and src/attnscope/measures/cards.json, which `attnscope measures` lists
without torch.

python -m tools.measures_table            write both
python -m tools.measures_table --check    exit with 1 if one of them is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from attnscope.core.card import Card
from attnscope.core.files import write_atomically
from attnscope.core.measure import FILE, cards_json
from attnscope.core.registry import measures
from tools.marked import put_between_marks

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scan.md"
CARDS = ROOT / "src" / "attnscope" / "measures" / FILE
SCOPES = {"stream": "residual stream", "attention": "attention", "weights": "weights"}
TRAINING = "training (`attnscope.watch`)"


def measures_table(cards: Iterable[Card]) -> str:
    """Return a table with one row per object of measurement and one column per set."""
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
    """Return the page with this table between its marks."""
    return put_between_marks(text, "measures", "tools/measures_table.py", table)


def main(check: bool) -> int:
    text = PAGE.read_text("utf-8")
    wanted = with_table(text, measures_table(measure.card for measure in measures().values()))
    if check:
        return int(wanted != text or CARDS.read_bytes() != cards_json(measures()))
    write_atomically(CARDS, cards_json(measures()))
    write_atomically(PAGE, wanted.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
