"""HTML pages: one self-contained file each, which loads nothing.

page = document_page(document(found), "collapse")                       # any Document
page = page("survey.html", verdict=verdict(found), figures=[curves], provenance=rows(...), **words)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attnscope import __version__
from attnscope.core.errors import RefusalError
from attnscope.core.words import numeral
from attnscope.reports.document import Document, Figure, Section
from attnscope.reports.export import Drawn, digest, drawn_to_fit
from attnscope.reports.words import Verdict, citation

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

# Numbers with a sign, or a sign in the exponent: -0.5, +1,234.5, 3e-5, 10^-14.
SIGNED = re.compile(r"(?<![\w&#;.^-])(?:[+-]\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|\d[\d,]*(?:\.\d+)?e-\d+|\d+\^-\d+)(?![\w-])")
CODE = re.compile(r"`([^`]+)`")
ARXIV = re.compile(r"\barXiv:(\d{4}\.\d{4,5})\b")
LONG = 28  # characters; columns with longer text get room to wrap


def document_page(
    document: Document,
    command: str,
    *,
    template: str = "document.html",
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    figures: Iterable[Drawn] = (),
    **words: Any,
) -> str:
    """Return the page of a document. The same document gives the same page.

    A `template` that extends document.html adds sections of its own, from `figures` and `words`.
    """
    drawn = [_drawn(section) for section in _picture_first(document.sections)]
    if any(section.tabs for section in document.sections):
        styles, scripts = ("tabs.css", *styles), ("tabs.js", *scripts)
    sections = [(section, figures, _address(section)) for section, figures in drawn]
    return page(
        template,
        verdict=document.verdict,
        styles=("document.css", *styles),
        scripts=scripts,
        figures=[*(figure for _, drawn, _ in sections for figure in drawn), *figures],
        document=document,
        sections=sections,
        command=document.command or command,
        long=LONG,
        provenance=document.provenance,
        **words,
    )


def _picture_first(sections: Sequence[Section]) -> Sequence[Section]:
    """Return the first section with a picture before those that only have words or tables; cards keep their place."""
    shown = (one for one in sections if not one.detail and (one.figures or one.tabs or one.cards))
    first = next(shown, None)
    if first is None or first.cards:
        return sections
    return (first, *(one for one in sections if one is not first))


def _drawn(section: Section) -> tuple[Section, list[Drawn]]:
    """Draw the figures of a section. If a figure is refused, add the reason as a note."""
    figures, refused = [], []
    for figure in section.figures:
        try:
            figures.append(_draw(figure))
        except RefusalError as error:
            refused.append(str(error))
    return replace(section, notes=(*refused, *section.notes)), figures


def _draw(figure: Figure) -> Drawn:
    words = {"title": figure.title, "caption": figure.caption, "summary": figure.summary}
    if not figure.themed:
        return drawn_to_fit(figure.draw, figure.name, **words)
    light, dark = (
        drawn_to_fit(lambda width, theme=theme: figure.draw(width, theme=theme), f"{figure.name}-{theme}", **words)  # type: ignore[misc]
        for theme in ("light", "dark")
    )
    both = f'<div class="for-light">{light.svg}</div><div class="for-dark">{dark.svg}</div>'
    return replace(light, name=figure.name, svg=both)


def _address(section: Section) -> str:
    return re.sub(r"\W+", "-", (section.link or section.title).lower()).strip("-")


def page(
    template: str,
    *,
    verdict: Verdict,
    figures: Iterable[Drawn] = (),
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    **words: Any,
) -> str:
    """Return a page that extends `shell.html`. The same input gives the same page.

    `figures` are the charts whose specifications can be saved from the page. `styles` and `scripts` are templates that
    the page needs besides those of the shell.
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
        specifications={figure.name: figure.specification for figure in figures if figure.specification},
        **words,
    )


def environment(package: str = "attnscope.reports") -> jinja2.Environment:
    """Return the template environment of a package, which can also include the templates of
    `attnscope.reports`. Values are escaped."""
    import jinja2

    packages = dict.fromkeys((package, "attnscope.reports"))
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package, "templates") for package in packages]),
        autoescape=lambda name: name is None or name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"numeral": numeral, "citation": citation, "unbroken": unbroken, "prose": prose}
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def page_style(templates: jinja2.Environment) -> str:
    """Return the style sheet of the shell, in the colours of the charts."""
    from attnscope.reports.colours import SERIES, STEPS, diverging, ink, sequential

    return templates.get_template("shell.css").render(
        steps=range(STEPS), sequential=sequential, diverging=diverging, ink=ink, series=SERIES
    )


def policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows only this style sheet and script: no network, frames, forms
    or eval.
    """
    return (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def unbroken(text: str) -> Markup:
    """Escape text and prevent line breaks inside numbers: browsers would break `-5.082e-4` after a minus sign."""
    from markupsafe import Markup, escape

    return Markup(SIGNED.sub(r'<span class="unbroken">\g<0></span>', str(escape(text))))


def prose(text: str) -> Markup:
    """Escape text, link its arXiv numbers, show `words in backticks` as code, and keep numbers unbroken."""
    from markupsafe import Markup

    linked = ARXIV.sub(r'<a href="https://arxiv.org/abs/\1" rel="noreferrer">\g<0></a>', str(unbroken(text)))
    return Markup(CODE.sub(r"<code>\1</code>", linked))
