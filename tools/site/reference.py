"""The reference, generated from the code each time the site is built.

Variants, papers and families have pages in docs/, which other tools generate and tests compare with the code. They are
in the navigation, but are not generated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.site.cards import constructions_page, explanations_page, findings_page, measures_page
from tools.site.commands import command_pages
from tools.site.formats import formats_page
from tools.site.markdown import contents
from tools.site.python_api import api_pages

INDEX = (
    ("commands/index", "Commands", "every option, with its default and two examples"),
    ("python/index", "Python", "every public name, with its docstring"),
    ("measures", "Measures", "what is measured, in which unit, and when it is worth a look"),
    ("findings", "Findings and alarms", "what is said about a model, and every threshold that decides"),
    ("constructions", "Constructions", "ways to build a head"),
    ("explanations", "Explanations", "ways to say which tokens decided"),
    ("../variants", "Variants", "attention that can be exchanged"),
    ("../papers", "Experiments", "what papers claim, and the verdicts on record"),
    ("../families", "Families", "which models can be looked at"),
    ("formats", "File formats", "what commands write"),
    ("../costs", "Costs", "what each command takes"),
)


def write_reference(folder: Path) -> None:
    for name, text in pages():
        place = folder / f"{name}.md"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")


def pages() -> Iterator[tuple[str, str]]:
    lines = "\n".join(f"- [{title}]({page}.md): {words}" for page, title, words in INDEX)
    listed = contents([page for page, _, _ in INDEX], hidden=True)
    yield "index", f"# Reference\n\nWritten from the code when this site was built.\n\n{lines}\n\n{listed}"
    yield from command_pages()
    yield from api_pages()
    yield "measures", measures_page()
    yield "findings", findings_page()
    yield "constructions", constructions_page()
    yield "explanations", explanations_page()
    yield "formats", formats_page()
