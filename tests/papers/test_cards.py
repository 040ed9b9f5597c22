"""The list of papers: cards.json agrees with the experiments, and reading it imports none of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.resources import files

import pytest

from attnscope.core.registry import experiments
from attnscope.papers import cards as cards_module
from attnscope.papers.cards import FILE, cards, cards_json


def test_cards_file_equals_the_experiments() -> None:
    written = files("attnscope.papers").joinpath(FILE).read_bytes()
    assert written == cards_json(experiments()), "write it anew with `make tables`"
    assert cards() == {name: one.card for name, one in experiments().items()}


def test_changed_experiment_is_imported_for_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {name: {**one, "title": "old", "sha256": "0" * 64} for name, one in cards_module._written().items()}
    monkeypatch.setattr(cards_module, "_written", lambda: old)
    assert cards()["dong2021"].title == experiments()["dong2021"].title


def test_the_list_has_a_line_for_each_paper_and_imports_neither_torch_nor_numpy() -> None:
    program = (
        "import sys; from attnscope.cli.main import app\n"
        "app(['reproduce'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'cattrs'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert max(map(len, lines)) <= 80
    heading, *rows = lines
    assert heading.split() == ["quick", "paper"]
    for line, (name, card) in zip(rows, cards().items(), strict=False):
        assert line.startswith(f"{name} ")
        assert card.title[:15] in line
        quick, paper = line[heading.index("quick") : heading.index("paper")], line[heading.index("paper") :]
        assert all(re.match(r"\d+ of \d+|- ", cell) for cell in (quick, paper)), line
    assert "attnscope reproduce NAME" in " ".join(rows[len(cards()) :])
