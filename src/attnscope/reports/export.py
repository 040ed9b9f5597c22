"""Write a chart to a file: .json (the specification), .svg, .png or .html, without a browser or a network.

vl-convert has its own JavaScript engine and fonts. Files are written atomically.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.core.words import drawable
from attnscope.reports.theme import configuration, specification


def digest(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows one script or style sheet."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


SUFFIXES = (".html", ".json", ".png", ".svg")
_SCRIPT = re.compile(r"<script[^>]*>(.*?)</script>", re.DOTALL)
VEGA_LITE = "6.4"
"""The Vega-Lite version that compiles specifications; Altair 6.3 writes for it."""


def save(chart: Any, path: Path | str, *, theme: str | None = None, scale: float = 2.0) -> Path:
    """Write a chart; `scale` is pixels per point in a PNG."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise RefusalError(f"A chart can be saved as {', '.join(SUFFIXES)}, not as '{path.name}'.")
    write_atomically(path, render(specification(chart, theme), path.suffix.lower(), scale), make_folder=True)
    return path


def render(document: dict[str, Any], suffix: str, scale: float = 2.0) -> bytes:
    """Return the bytes of a chart file. All strings pass through `drawable`, because bad ones abort the process."""
    document = drawable(document)
    if suffix == ".json":
        return json.dumps(document, indent=1).encode()
    import vl_convert

    if suffix == ".png":
        png: bytes = vl_convert.vegalite_to_png(document, vl_version=VEGA_LITE, scale=scale)
        return png
    if suffix == ".svg":
        svg: str = vl_convert.vegalite_to_svg(document, vl_version=VEGA_LITE)
        return svg.encode()
    return _html(document)


def _html(document: dict[str, Any]) -> bytes:
    """Return a page with the chart. A `</script>` in a text of the chart must not end the page's script.

    vl-convert copies the specification into the page unchanged. So every `<` is replaced by a private-use character,
    which becomes its JavaScript escape in the finished page.
    """
    import vl_convert

    spoken = json.dumps(document, ensure_ascii=False)
    stand_in = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in spoken)
    html: str = vl_convert.vegalite_to_html(
        json.loads(spoken.replace("<", stand_in)), vl_version=VEGA_LITE, bundle=True
    )
    return _confined(html.replace(stand_in, "\\u003c")).encode()


def _confined(html: str) -> str:
    """Add a Content-Security-Policy to the page that allows its two scripts (Vega, the chart) by hash, and no network.

    Vega compiles a chart's expressions to functions, which needs 'unsafe-eval'. With `ast` it interprets them instead.
    Inline styles are allowed ('unsafe-inline'): Vega positions marks by attributes, and its menu adds a style sheet;
    neither can load anything. The menu saves files as `blob:` and `data:`.
    """
    plain, interpreted = '{"renderer":"svg"}', '{"renderer":"svg","ast":true}'
    before, opts, after = html.rpartition(f"const opts = {plain}")
    assert opts, "vl-convert no longer writes its options as expected"
    html = f"{before}const opts = {interpreted}{after}"
    scripts = " ".join(f"'{digest(script)}'" for script in _SCRIPT.findall(html))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<head>\n    <meta charset="UTF-8">\n    <meta http-equiv="Content-Security-Policy" content="{policy}">'
    return html.replace("<head>", head, 1)


# Charts on pages are drawn in the `page` theme, whose colours are CSS variables: one drawing serves light, dark and
# print. Every mark has a sentence (`aria-label`, from the chart's `description`), which the page's script shows on
# hover, on touch and on arrow keys.

WIDTHS = {"phone": 326, "tablet": 600, "desk": 1080}
"""Widths of charts with axes and legends, on screens up to 46rem, up to 74rem, and wider (see shell.css)."""
BROAD = 440  # pixels; wider drawings are unreadable on a telephone
PLACES = "d|transform|viewBox|[xyr]|[xy][12]|[cdr][xy]|width|height|points"


@dataclass(frozen=True)
class Drawn:
    """A chart on a page. `name` is unique on the page and names its files; screen readers read `summary`."""

    name: str
    title: str
    caption: str
    summary: str
    svg: str
    specification: dict[str, Any]


def drawn(chart: Any, name: str, *, title: str, caption: str = "", summary: str = "") -> Drawn:
    """Draw a chart at its own width, for the `figure` of `figure.html`."""
    document = _unchecked(lambda: chart)
    return Drawn(name, title, caption, summary or caption or title, drawing(document, name), document)


def drawn_to_fit(make: Callable[[int], Any], name: str, *, title: str, caption: str = "", summary: str = "") -> Drawn:
    """Draw a chart at three widths: telephone, tablet and desktop. `make(width)` returns a chart or SVG text.

    One drawing that shrinks would shrink its letters too, so the style sheet shows one of three.
    """
    documents = {fit: _unchecked(lambda width=width: make(width)) for fit, width in WIDTHS.items()}  # type: ignore[misc]
    svg = "".join(
        f'<div class="fits-{fit}">{document if isinstance(document, str) else drawing(document, f"{name}-{fit}")}</div>'
        for fit, document in documents.items()
    ).replace(' class="broad"', "")
    desk = documents["desk"]
    return Drawn(name, title, caption, summary or caption or title, svg, {} if isinstance(desk, str) else desk)


def _unchecked(make: Callable[[], Any]) -> Any:
    """Return the light specification of a chart, or SVG text unchanged, without Altair's schema checks.

    The checks cost more than the drawing. The tests check every chart.
    """
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        made = make()
        return made if isinstance(made, str) else specification(made, "light", validate=False)


def drawing(chart: Any, name: str) -> str:
    """Return a chart, or its specification, as SVG of fixed width in the colours of the page.

    A drawing too wide for a narrow screen is marked `broad`, and the style sheet lets it scroll instead of shrink.
    """
    svg = numbered(slim(render(specification(chart, "page", validate=False), ".svg").decode()), name)
    box = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    assert box is not None
    broad = ' class="broad"' if float(box[1]) > BROAD else ""
    return svg.replace("<svg ", f'<svg width="{box[1]}"{broad} ', 1)


def thumbnail(chart: Any, name: str) -> Drawn:
    """Draw the marks of a chart alone: its words would be too small to read. Screen readers read its title."""
    document = _unchecked(lambda: chart)
    title = next(_titles(document), "")
    svg = re.sub(r'<text.*?</text>| aria-label="[^"]*"', "", drawing(_bare(document), name), flags=re.DOTALL)
    return Drawn(name, title, "", f"Picture: {title}", svg.replace(' class="broad"', ""), {})


def _titles(document: dict[str, Any]) -> Iterator[str]:
    """Yield the titles of a specification and its parts."""
    title = document.get("title")
    if title:
        yield title["text"] if isinstance(title, dict) else title
    for parts in ("vconcat", "hconcat", "concat"):
        for part in document.get(parts, ()):
            yield from _titles(part)


def _bare(part: Any) -> Any:
    """Return part of a specification without titles, axes and legends."""
    if isinstance(part, list):
        return [_bare(one) for one in part]
    if not isinstance(part, dict):
        return part
    bare = {name: value if "data" in name else _bare(value) for name, value in part.items() if name != "title"}
    for channel in bare.get("encoding", {}).values():
        if isinstance(channel, dict):
            channel |= {"axis": None, "legend": None}
    return bare


def fluid(document: dict[str, Any]) -> str:
    """Return a specification as SVG that grows and shrinks with its column."""
    return slim(render({**document, "config": configuration("page")}, ".svg").decode())


def numbered(svg: str, name: str) -> str:
    """Renumber clips and gradients from 0, so that equal charts give equal SVGs.

    The renderer continues its numbers from chart to chart. `name` makes them unique on the page.
    """
    for kind, label in (("clip", "clip"), ("gradient_", "gradient")):
        numbers: dict[str, int] = {}
        svg = re.sub(
            rf'((?: id="|url\(#)){kind}(\d+)',
            lambda found, label=label, numbers=numbers: (  # type: ignore[misc]
                f"{found[1]}{name}-{label}{numbers.setdefault(found[2], len(numbers))}"
            ),
            svg,
        )
    return svg


def slim(svg: str) -> str:
    """Drop attributes that the style sheet sets or that have no effect. Let the drawing grow with its column."""
    svg = re.sub(r' (?:opacity="1"|pointer-events="none"|version="1.1"|xmlns:xlink="[^"]*"|class="marks")', "", svg)
    svg = re.sub(r' (?:font-family|aria-roledescription|font-size)="[^"]*"', "", svg)
    svg = re.sub(r' role="graphics-(?:object|symbol)"', "", svg)
    svg = re.sub(r'<path class="(?:background|foreground)"[^>]*/>', "", svg)
    # Round coordinates to hundredths of a pixel, but not text: an axis label 0.005 must not become 0.00.
    svg = re.sub(rf' (?:{PLACES})="[^"]*"(?=[^<]*>)', lambda place: re.sub(r"(\.\d\d)\d+", r"\1", place[0]), svg)
    return re.sub(
        r'(<svg [^>]*?) width="[^"]*" height="[^"]*"',
        r'\1 aria-hidden="true" focusable="false"',
        svg,
        count=1,
    )
