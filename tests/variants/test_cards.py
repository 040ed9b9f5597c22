"""The list of variants: cards on record equal the variants, and reading them imports no variant."""

import os
import subprocess
import sys
from importlib.resources import files

import pytest

from attnscope.core import variant as cards_module
from attnscope.core.registry import variants
from attnscope.core.variant import FILE, ROOM, cards_json, variant_cards
from tools.variant_cards import PAGE, page


def test_cards_on_record_equal_the_variants() -> None:
    assert files(ROOM).joinpath(FILE).read_bytes() == cards_json(variants()), "write it anew with `make tables`"
    assert variant_cards() == {name: one.card for name, one in variants().items()}


def test_page_equals_the_cards() -> None:
    fresh = page(one.card for one in variants().values())
    assert PAGE.read_text("utf-8") == fresh, "write it anew with `make tables`"
    for one in variants().values():
        assert f"### {one.card.name}" in fresh
        assert one.card.formula in fresh


def test_card_of_a_changed_variant_is_read_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {name: {**one, "title": "old", "sha256": "0" * 64} for name, one in cards_module._stored_cards().items()}
    monkeypatch.setattr(cards_module, "_stored_cards", lambda: old)
    assert variant_cards()["local"].title == variants()["local"].card.title


def test_list_and_cards_fit_a_terminal_and_import_neither_torch_nor_numpy() -> None:
    program = (
        "import sys; from attnscope.cli.main import app\n"
        "app(['variants'], standalone_mode=False)\n"
        "for name in ('mixed_heads', 'gated_output'): app(['variants', name], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'cattrs'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "\u2026" not in shown, "nothing is cut off"
    for name, card in variant_cards().items():
        line = next(line for line in shown.splitlines() if line.startswith(f"{name} "))
        assert card.title in line
        assert line.rstrip().endswith("keeps" if card.keeps else "changes")
    assert "width x heads*dim (elementwise)" in " ".join(shown.split())


def test_every_fact_of_a_card_is_words() -> None:
    for card in variant_cards().values():
        facts = card.facts()
        terms = [term for term, _ in facts]
        assert ("keeps" in terms) != ("changes" in terms)
        assert all(words and words.isprintable() for _, words in facts)
        assert facts[-1] == ("source", card.citation)
