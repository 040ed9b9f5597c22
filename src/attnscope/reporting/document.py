"""What every page shares: how templates are found and escaped, what a page may load, its style, provenance as rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attnscope.core.digest import digest

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

# Numbers with a sign before them or in their power: -0.5, +1,234.5, 3e-5, 10^-14.
SIGNED = re.compile(r"(?<![\w&#;.^-])(?:[+-]\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|\d[\d,]*(?:\.\d+)?e-\d+|\d+\^-\d+)(?![\w-])")


def environment(package: str = "attnscope.reporting") -> jinja2.Environment:
    """Templates of a package, which may include those of this room; every value is escaped unless marked safe."""
    import jinja2

    from attnscope.core.numerals import numeral
    from attnscope.reporting.survey.words import card_range, citation, site_title

    rooms = dict.fromkeys((package, "attnscope.reporting"))
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(room, "templates") for room in rooms]),
        autoescape=lambda name: name is None or name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"numeral": numeral, "citation": citation, "card_range": card_range, "unbroken": unbroken}
    made.globals |= {"site_title": site_title}
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def page_style(templates: jinja2.Environment) -> str:
    """The style sheet of the report, in the colours of the charts."""
    from attnscope.charts.palette import SERIES, STEPS, diverging, sequential

    return templates.get_template("page.css").render(
        steps=range(STEPS), sequential=sequential, diverging=diverging, series=SERIES
    )


def policy(style: str, script: str | None = None) -> str:
    """Only this style sheet and this script, or none; no network, no frames, no forms, no evaluation of text."""
    scripts = "" if script is None else f" script-src '{digest(script)}';"
    return (
        f"default-src 'none';{scripts} style-src '{digest(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def unbroken(text: str) -> Markup:
    """Text in which no line ends inside a number: browsers break `-5.082e-4` after either of its signs."""
    from markupsafe import Markup, escape

    return Markup(SIGNED.sub(r'<span class="unbroken">\g<0></span>', str(escape(text))))


def flat(data: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested data as rows: `model hash`, `sha256:...`. What is empty has no row."""
    if isinstance(data, dict):
        return [row for key, value in data.items() for row in flat(value, f"{name} {key}".strip())]
    if isinstance(data, list) and any(isinstance(v, dict) for v in data):
        return [row for n, value in enumerate(data) for row in flat(value, f"{name} {n + 1}")]
    if data == "" or (isinstance(data, list | tuple) and not data):
        return []
    if isinstance(data, list | tuple):
        return [(name, ", ".join(str(v) for v in data))]
    if isinstance(data, int) and not isinstance(data, bool):
        return [(name, f"{data:,}")]
    return [(name, "not known" if data is None else str(data))]
