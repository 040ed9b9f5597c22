"""The references that attnscope knows: `references.json`, papers by arXiv number, and works that have none.

Each was looked up. A paper whose authors could not be verified has an empty list of authors and no author in BibTeX;
one that is not in the file at all is cited by its number alone.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope.citing.entry import Entry


@cache
def papers() -> dict[str, Entry]:
    """By arXiv number."""
    return {number: _entry(said, eprint=number) for number, said in _read()["arxiv"].items()}


@cache
def works() -> dict[str, Entry]:
    """By the words with which cards name them."""
    return {said["says"]: _entry({k: v for k, v in said.items() if k != "says"}) for said in _read()["works"]}


def paper(number: str) -> Entry:
    """The entry of a paper that a card cites. A number that nobody has looked up yet is still an answer."""
    return papers().get(number) or Entry(key=f"arxiv{number.replace('.', '')}", title=f"arXiv:{number}", eprint=number)


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files("attnscope.citing").joinpath("references.json").read_text("utf-8"))
    return found


def _entry(said: dict[str, Any], eprint: str | None = None) -> Entry:
    return Entry(**{**said, "authors": tuple(said["authors"]), "eprint": eprint})
