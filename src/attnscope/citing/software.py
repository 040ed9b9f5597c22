"""How attnscope itself is cited: the one place. `tools/citation_file.py` writes CITATION.cff from here."""

from __future__ import annotations

import json

from attnscope import __version__
from attnscope.citing.entry import Entry

NAME = "attnscope"
AUTHORS = ("The attnscope contributors",)
TITLE = "attnscope: what attention in a transformer does, and whether depth is destroying it"
LICENSE = "Apache-2.0"
# What cards say where the method is attnscope's own.
SAYS = "this software"


def software() -> Entry:
    # No year: versions are what differ, and none of them carries a date.
    return Entry(key=NAME, title=TITLE, authors=AUTHORS, version=__version__, howpublished="Computer software")


def citation_file() -> str:
    """CITATION.cff (Citation File Format 1.2.0), which code hosts and reference managers read. JSON is YAML."""
    entry = software()
    lines = [
        "cff-version: 1.2.0",
        "message: If you use attnscope in your work, please cite it, and the papers that `attnscope cite NAME` gives.",
        "type: software",
        f"title: {json.dumps(entry.title)}",
        f"version: {json.dumps(entry.version)}",
        f"license: {LICENSE}",
        "authors:",
        *(f"  - name: {json.dumps(author)}" for author in entry.authors),
    ]
    return "\n".join(lines) + "\n"
