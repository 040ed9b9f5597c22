"""The index page has every link, verdict and command, and the first verdict on top."""

from __future__ import annotations

import html
import re

from attnscope.commands.records import Linked, index
from attnscope.reports.words import Verdict

CALM = Linked("Is it healthy?", "attnscope scan pocket", "scan.html", Verdict("calm", "Nothing stands out."))
BAD = Linked("Why <b>?", 'attnscope paths pocket "a & b"', "paths.html", Verdict("warning", "One & two are alike."))


def test_each_page_is_linked_with_its_verdict_and_its_command() -> None:
    made = index("pocket", [CALM, BAD])
    read = re.sub(r"</?span[^>]*>", "", made)  # words of commands are kept whole by spans
    for one in (CALM, BAD):
        assert f'<a href="{one.place}">{html.escape(one.question)}</a>' in made
        assert html.escape(one.command).replace("&quot;", "&#34;") in read
        assert html.escape(one.verdict.sentence) in made
    assert "<b>" not in made


def test_it_stands_under_the_verdict_of_the_first() -> None:
    for first, other in ((CALM, BAD), (BAD, CALM)):
        found = re.search(r'id="verdict" class="verdict (\w+)"', index("pocket", [first, other]))
        assert found is not None
        assert found[1] == first.verdict.level
