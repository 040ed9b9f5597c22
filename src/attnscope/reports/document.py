"""What every page shares: templates and escaping, what a page may load, style and script, provenance as rows.

return page("collapse.html", verdict=verdict(found), figures=[curves], title=..., provenance=rows(...), **words)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attnscope import __version__
from attnscope.core.words import numeral
from attnscope.reports.export import Drawn, digest
from attnscope.reports.words import Verdict, citation

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

# Numbers with a sign before them or in their power: -0.5, +1,234.5, 3e-5, 10^-14.
SIGNED = re.compile(r"(?<![\w&#;.^-])(?:[+-]\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|\d[\d,]*(?:\.\d+)?e-\d+|\d+\^-\d+)(?![\w-])")


def page(
    template: str,
    *,
    verdict: Verdict,
    figures: Iterable[Drawn] = (),
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    **words: Any,
) -> str:
    """A page that extends `shell.html`. Equal words give equal pages.

    `figures` are all the charts on it, whose specifications can be saved from it. `styles` and `scripts` are templates
    of this room that the page needs beside those of the shell.
    """
    templates = environment()
    style = page_style(templates) + "".join(templates.get_template(name).render() for name in styles)
    folder = files("attnscope.reports").joinpath("templates")
    script = "\n".join(folder.joinpath(name).read_text("utf-8") for name in ("shell.js", *scripts))
    return templates.get_template(template).render(
        policy=policy(style, script),
        style=style,
        script=script,
        version=__version__,
        verdict=verdict,
        specifications={figure.name: figure.specification for figure in figures},
        **words,
    )


def environment(package: str = "attnscope.reports") -> jinja2.Environment:
    """Templates of a package, which may include those of this room; every value is escaped unless marked safe."""
    import jinja2

    rooms = dict.fromkeys((package, "attnscope.reports"))
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(room, "templates") for room in rooms]),
        autoescape=lambda name: name is None or name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"numeral": numeral, "citation": citation, "unbroken": unbroken}
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def page_style(templates: jinja2.Environment) -> str:
    """The style sheet of the shell, in the colours of the charts."""
    from attnscope.reports.colours import SERIES, STEPS, diverging, ink, sequential

    return templates.get_template("shell.css").render(
        steps=range(STEPS), sequential=sequential, diverging=diverging, ink=ink, series=SERIES
    )


def policy(style: str, script: str) -> str:
    """Only this style sheet and this script; no network, no frames, no forms, no evaluation of text."""
    return (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def unbroken(text: str) -> Markup:
    """Text in which no line ends inside a number: browsers break `-5.082e-4` after either of its signs."""
    from markupsafe import Markup, escape

    return Markup(SIGNED.sub(r'<span class="unbroken">\g<0></span>', str(escape(text))))


def rows(data: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested data as rows: `model hash`, `sha256:...`. What is empty or not known has no row, a word that repeats the
    one before it stands once (`model type`, not `model model type`), and numbers have the figures they have elsewhere.
    """
    if isinstance(data, dict):
        return [row for key, value in data.items() for row in rows(value, _joined(name, str(key)))]
    if isinstance(data, list | tuple) and any(isinstance(v, dict) for v in data):
        return [row for n, value in enumerate(data) for row in rows(value, f"{name} {n + 1}")]
    if data is None or data == "" or (isinstance(data, list | tuple) and not data):
        return []
    if isinstance(data, list | tuple):
        return [(name, ", ".join(_said(v) for v in data))]
    return [(name, _said(data))]


def _joined(name: str, key: str) -> str:
    words = key.replace("_", " ").split()
    if name and words and words[0] == name.rsplit(maxsplit=1)[-1]:
        words = words[1:]
    return " ".join((name, *words)).strip()


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return numeral(value) if isinstance(value, float) else str(value)
