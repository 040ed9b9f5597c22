"""Phrases that readers stumbled over stay out of code, tests and pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RIDDLES = {
    r"(?<!there )\b(is|are|was|were) (?-i:none)\b": "say NaN, missing, ignored or 'there is no ...'",
    r"\bof itself\b": "name the thing",
    r"\bwhat is said of\b": "name the sentence",
    r"\bwhoever\b": "say caller, user or observer",
    r"\bnone of those\b": "say which are skipped",
    r"\bgone on with\b": "say resumed",
    r"\b(is|are|stands?) at rest\b": "say what the head attends to",
    r"\bwhat (is|was) (?-i:none)\b": "say NaN or missing",
    r"\bthat (is|are) (?-i:none)\b": "say NaN or missing",
    r"\b(is|are) no numbers?\b": "say NaN, or 'is not a number'",
    r"\bwhat is done is kept\b": "say 'finished work is kept'",
    r"\ba file of one\b": "say 'a text file'",
    r"\bbegins at the beginning\b": "say 'starting a new one'",
    r"\bbefore any model is seen\b": "say 'independent of any model'",
    r"\bsays something else\b": "say 'is out of date'",
    r"\bpays for (allocations|imports)\b": "say 'includes'",
    r"\b(by turns|typed by hand|development material)\b": "say 'in turns', 'generated', 'for development only'",
    r"\btheir life\b": "say that a process died",
}
FILES = sorted(
    path
    for pattern in ("src/**/*.py", "tests/**/*.py", "tools/**/*.py", "bench/**/*.py", "docs/**/*.md", "*.md")
    for path in ROOT.glob(pattern)
    if path != Path(__file__)
)


@pytest.mark.parametrize("riddle", RIDDLES)
def test_no_file_contains_a_banned_phrase(riddle: str) -> None:
    phrase = re.compile(riddle, re.IGNORECASE)
    places = []
    for path in FILES:
        text = path.read_text("utf-8")
        places += [f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}" for m in phrase.finditer(text)]
    assert places == [], RIDDLES[riddle]
