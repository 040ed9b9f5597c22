"""The public names of attnscope with their signatures, and their docstrings as they stand."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import attnscope
from attnscope.commands.records import KINDS, class_of
from attnscope.core.errors import RefusalError
from attnscope.reports.record import Record
from tools.site.markdown import contents

GROUPS = (
    ("functions", "Functions", "Every command has a twin here that takes the same words, and models in memory."),
    (
        "records",
        "Records",
        "A record is what a command finds: a frozen dataclass that is saved, loaded and drawn.",
    ),
    ("others", "Other classes", "Smaller things that these take, give or raise."),
)


def api_pages() -> Iterator[tuple[str, str]]:
    """Name and text of each page, that of the list first."""
    public = {name: getattr(attnscope, name) for name in attnscope.__all__ if not name.startswith("_")}
    public |= {record.__name__: record for record in map(class_of, KINDS)}
    lists = "\n\n".join(f"- [{title}]({page}.md). {words}" for page, title, words in GROUPS)
    intro = "Names are imported when they are first used, so `import attnscope` costs nothing and needs no torch."
    yield "python/index", f"# Python\n\n{intro}\n\n{lists}\n\n{contents([one[0] for one in GROUPS], hidden=True)}"
    for page, title, words in GROUPS:
        parts = [f"# {title}\n", f"{words}\n"]
        parts += [_entry(name, one) for name, one in sorted(public.items(), key=_letters) if _group(one) == page]
        yield f"python/{page}", "\n".join(parts)


def _letters(item: tuple[str, Any]) -> str:
    return item[0].lower()


def _group(thing: Any) -> str:
    if inspect.isclass(thing):
        return "records" if issubclass(thing, Record) else "others"
    return "functions"


def _entry(name: str, thing: Any) -> str:
    home = "attnscope" if name in attnscope.__all__ else thing.__module__
    parts = [f"## {name}\n", f"```python\n{home}.{name}{_signature(thing)}\n```\n", f"{_docstring(thing)}\n"]
    if inspect.isclass(thing) and not issubclass(thing, RefusalError):
        parts += [_member(name, one, what) for one, what in _members(thing)]
    elif not inspect.isfunction(thing) and not inspect.isclass(thing):  # `watch`, which is called and has ways besides
        parts += [_member(name, one, what) for one, what in _members(type(thing))]
    return "\n".join(parts)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class adds or says anew; what all records do is told once, with `Record`."""
    for one, what in vars(kind).items():
        function = getattr(what, "fget", None) or getattr(what, "__func__", what)
        if not one.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield one, what


def _member(owner: str, name: str, what: Any) -> str:
    function = getattr(what, "fget", None) or getattr(what, "__func__", what)
    called = "" if isinstance(what, property) else _signature(function)
    return f"### {owner}.{name}\n\n```python\n{name}{called}\n```\n\n{_docstring(function)}\n"


def _signature(thing: Any) -> str:
    """As it is written: names and defaults, without the shapes that only tests look at; on several lines if long."""
    try:
        found = inspect.signature(thing)
    except ValueError:  # an exception takes what exceptions take
        return "(sentence)"
    shown = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    pieces: list[str] = []
    for one in shown:
        if one.kind is one.KEYWORD_ONLY and not any(piece.startswith("*") for piece in pieces):
            pieces.append("*")
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        default = "" if one.default is one.empty else f"={_value(one.default)}"
        pieces.append(f"{stars}{one.name}{default}")
    line = ", ".join(pieces)
    if len(line) <= 72:
        return f"({line})"
    return "(\n" + textwrap.fill(line, 80, initial_indent="    ", subsequent_indent="    ") + ",\n)"


def _value(default: Any) -> str:
    said = repr(default)
    return said if not said.startswith("<") else "..."


def _docstring(thing: Any) -> str:
    """Docstrings are Markdown but for their signs of smaller and stars in formulas; indented lines stay code."""
    own = thing.__doc__ if inspect.isclass(thing) or inspect.isfunction(thing) else type(thing).__doc__
    words = inspect.cleandoc(own or "")
    if words.startswith(f"{getattr(thing, '__name__', '')}("):  # what dataclass writes by itself
        return ""
    kept = []
    for line in _sections(words).splitlines():
        bare = line if line.startswith("    ") else re.sub(r"(?<![`\\])([<\[\]])(?![^`]*`[^`]*$)", r"\\\1", line)
        kept.append(bare)
    return "\n".join(kept)


def _sections(words: str) -> str:
    """Turn NumPy sections into Markdown: a bold title, a list of names, and examples as code."""
    head, *sections = re.split(r"^(\w+)\n-{3,}\n", words, flags=re.MULTILINE)
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title == "Examples":
            lines = textwrap.indent(body.strip(), "    ")
        else:
            lines = re.sub(r"^(\S.*?)(?: : (.+))?$", _item, body.strip(), flags=re.MULTILINE)
            lines = re.sub(r"\n {4}(?=\S)", " ", lines)
        head += f"**{title}**\n\n{lines}\n\n"
    return head.rstrip()


def _item(found: re.Match[str]) -> str:
    return f"- `{found[1]}`" + (f" ({found[2]})." if found[2] else ".")
