"""Check that the documents name everything that is registered."""

from __future__ import annotations

import re
from pathlib import Path

from attnscope.cli.main import app
from attnscope.core.registry import constructions, experiments, explanations, measures, variants

ROOT = Path(__file__).resolve().parents[2]


def section(text: str, title: str) -> str:
    """Return the part of a document under a heading."""
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"there is no section called {title}"
    return found[1]


def undocumented() -> dict[str, list[str]]:
    """Return registered names that are not documented where they should be."""
    readme = (ROOT / "README.md").read_text("utf-8")
    scan = (ROOT / "docs" / "scan.md").read_text("utf-8")
    patterns = (ROOT / "docs" / "patterns.md").read_text("utf-8")
    places = {
        "docs/scan.md, What is measured": (list(measures()), section(scan, "What is measured")),
        "docs/papers.md": (list(experiments()), (ROOT / "docs" / "papers.md").read_text("utf-8")),
        "docs/patterns.md": (list(constructions()), patterns),
        "docs/explain.md": (list(explanations()), (ROOT / "docs" / "explain.md").read_text("utf-8")),
        "docs/variants.md": (list(variants()), (ROOT / "docs" / "variants.md").read_text("utf-8")),
    }
    missing = {place: [name for name in known if f"`{name}`" not in text] for place, (known, text) in places.items()}
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback]
    table = section(readme, "Commands")
    missing["README, Commands"] = [name for name in commands if not re.search(rf"`attnscope {name}\b", table)]
    return {place: names for place, names in missing.items() if names}
