"""A chart into a file: .json (the specification), .svg, .png or .html, without a browser or a network.

vl-convert carries its own JavaScript engine and fonts. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from attnscope.core.digest import digest
from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.core.visible import drawable

SUFFIXES = (".html", ".json", ".png", ".svg")
_SCRIPT = re.compile(r"<script[^>]*>(.*?)</script>", re.DOTALL)
VEGA_LITE = "6.4"
"""The Vega-Lite that specifications are compiled with; it is the one Altair 6.3 writes for."""


def save(chart: Any, path: Path | str, *, theme: str | None = None, scale: float = 2.0) -> Path:
    """Write a chart; `scale` is pixels per point in a PNG."""
    from attnscope.charts.theme import specification

    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise RefusalError(f"A chart can be saved as {', '.join(SUFFIXES)}, not as '{path.name}'.")
    write_atomically(path, render(specification(chart, theme), path.suffix.lower(), scale), make_folder=True)
    return path


def render(document: dict[str, Any], suffix: str, scale: float = 2.0) -> bytes:
    """The bytes of a chart file. Every string in it passes through `drawable`: the renderer would abort the process."""
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
    """A page with the chart. Texts in it are users' own: `</script>` in one must not end the script that holds them.

    The specification is written into the page by vl-convert as it is, so every `<` travels as a character of private
    use and becomes its JavaScript escape in the finished page.
    """
    import vl_convert

    spoken = json.dumps(document, ensure_ascii=False)
    stand_in = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in spoken)
    html: str = vl_convert.vegalite_to_html(
        json.loads(spoken.replace("<", stand_in)), vl_version=VEGA_LITE, bundle=True
    )
    return _confined(html.replace(stand_in, "\\u003c")).encode()


def _confined(html: str) -> str:
    """The page with a Content-Security-Policy: its own two scripts (Vega, the chart) by their hashes, and no network.

    Vega makes functions of a chart's expressions, which takes 'unsafe-eval'; with `ast` it interprets them instead, and
    nothing is evaluated. Styles may stand in the page ('unsafe-inline'): Vega places what it draws by attributes, and
    its menu brings a style sheet, and neither can load anything. `blob:` and `data:` are what the menu saves.
    """
    plain, interpreted = '{"renderer":"svg"}', '{"renderer":"svg","ast":true}'
    before, opts, after = html.rpartition(f"const opts = {plain}")
    assert opts, "vl-convert writes its options in another way"
    html = f"{before}const opts = {interpreted}{after}"
    scripts = " ".join(f"'{digest(script)}'" for script in _SCRIPT.findall(html))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<head>\n    <meta charset="UTF-8">\n    <meta http-equiv="Content-Security-Policy" content="{policy}">'
    return html.replace("<head>", head, 1)
