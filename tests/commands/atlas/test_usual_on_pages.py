"""Pages and screens of a scan show the usual range beside their numbers, and it is that of the atlas."""

from __future__ import annotations

import json
import re
from io import StringIO

from rich.console import Console

from attnscope.commands.atlas.ranges import reference
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.page import render
from attnscope.commands.scan.terminal import show
from tests.commands.compare.made import made

SURVEY = made({("sink_mass", 1): 4.0})


def test_the_page_shows_it_beside_findings_profiles_and_heads() -> None:
    (sink,) = (each for each in diagnose(SURVEY) if each.kind == "sink")
    known = reference(SURVEY, "sink_mass", "value", sink.stack, "self")
    assert known is not None
    page = render(SURVEY)
    facts = page.partition(sink.sentence.split(";")[0][:40])[2].partition("</article>")[0]
    assert f"{SURVEY.cards['sink_mass'].title}, {known.words}" in facts
    stored = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    ranges = {m["measure"]: m["reference"] for m in stored["maps"]}
    assert ranges["sink_mass"] == {"low": known.low, "high": known.high, "words": known.words}


def test_the_terminal_shows_it_beside_first_and_last() -> None:
    written = StringIO()
    Console(width=80, file=written).print(show(SURVEY, verbose=True))
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (head,) = (line for line in lines if line.rstrip().endswith("usual"))
    known = reference(SURVEY, "relative_residual", "value", "decoder", "stream")
    assert known is not None
    row = next(line for line in lines[lines.index(head) :] if f"{known.low:.2g} to {known.high:.2g}" in line)
    assert row.split()[-1] == f"{known.high:.2g}"
