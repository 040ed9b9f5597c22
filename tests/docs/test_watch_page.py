"""docs/watch.md names every rule with the thresholds that it has."""

from __future__ import annotations

import re

from attnscope.commands.watch.rule import rules
from tests.docs.lists import ROOT


def test_the_table_of_rules_is_what_the_rules_say() -> None:
    text = (ROOT / "docs" / "watch.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:note|warning|critical).*\| ([^|]+) \|$", text, re.M))
    told = {name: dict(re.findall(r"`(\w+)=([\d.]+)`", words)) for name, words in rows.items()}
    known = {name: {word: float(value) for word, value in rule.thresholds.items()} for name, rule in rules().items()}
    assert {name: {word: float(value) for word, value in own.items()} for name, own in told.items()} == known
