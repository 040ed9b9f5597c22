"""Write src/attnscope/papers/cards.json, which `attnscope reproduce` lists without importing the experiments."""

from __future__ import annotations

from pathlib import Path

from attnscope.core.files import write_atomically
from attnscope.core.registry import experiments
from attnscope.papers.cards import FILE, cards_json

PLACE = Path(__file__).parents[1] / "src" / "attnscope" / "papers" / FILE

if __name__ == "__main__":
    write_atomically(PLACE, cards_json(experiments()))
