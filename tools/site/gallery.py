"""The gallery: pictures of the embedded model, drawn by the twins of the commands, and the pictures in docs/.

    python -m tools.site.gallery          redraw docs/gallery/*.png, which the tutorials show

`make docs` redraws them for the site, so that they show the results of the current code.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import attnscope
from attnscope.reports.export import save
from tools.site.assemble import ROOT
from tools.site.markdown import prose

FOLDER = ROOT / "docs" / "gallery"
TEXT = "The dog chased its own tail and the dog"
SIZE = {"samples": 8, "max_tokens": 64}
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.png)\)")


@cache
def survey(random_init: bool = False) -> attnscope.Survey:
    return attnscope.scan("pocket", random_init=random_init, **SIZE)  # type: ignore[arg-type]


def run() -> Any:
    """Train the embedded model for a few steps, as in docs/tutorials/watch_a_run.md."""
    text = (ROOT / "docs" / "tutorials" / "watch_a_run.md").read_text("utf-8")
    block = re.search(r"```python\n(.*?)```", text, re.S)
    assert block, "the tutorial has a block of Python"
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block[1].replace('"run"', repr(folder)), "watch_a_run.md", "exec"), {})
        return attnscope.timeline(folder).chart("entropy")


# Name of the file: what it shows, the page that explains it, and how it is made.
DRAWN: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "sinks": (
        "How much every head attends to the first token",
        "tutorials/healthy.md",
        lambda: survey().chart("sink_mass", heads=True),
    ),
    "entropy": (
        "How widely every head spreads its attention",
        "scan.md",
        lambda: survey().chart("entropy", heads=True),
    ),
    "compare": (
        "Attention entropy, trained beside random weights",
        "tutorials/healthy.md",
        lambda: attnscope.compare(survey(True), survey()).chart(),
    ),
    "collapse": (
        "What depth does to the differences between tokens",
        "collapse.md",
        lambda: attnscope.collapse("pocket", samples=4, max_tokens=48).chart(),
    ),
    "paths": ("What paths of every length carry", "paths.md", lambda: attnscope.paths("pocket", TEXT).chart()),
    "explain": ("Which words decided", "tutorials/which_words.md", lambda: attnscope.explain("pocket", TEXT).chart()),
    "view": ("Where one head looks", "view.md", lambda: attnscope.view("pocket", TEXT).chart()),
    "head": (
        "A head built for a pattern",
        "tutorials/build_a_head.md",
        lambda: attnscope.compile(attnscope.generate("window", n=64, k=4, causal=True)).chart(),
    ),
    "capacity": ("How wide a head must be", "patterns.md", lambda: attnscope.capacity(256, 4).chart()),
    "treat": (
        "A remedy beside its control",
        "tutorials/treat_it.md",
        lambda: attnscope.treat("pocket", remedy="gated_output", steps=20, max_tokens=48).chart(),
    ),
    "watch": ("Entropy of every block while the model trains", "tutorials/watch_a_run.md", run),
}


def draw(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, _, make) in DRAWN.items():
        save(make(), folder / f"{name}.png", scale=1.0)


def gallery_page(docs: Path) -> str:
    lines = ["# Gallery\n", "The embedded model `pocket`, drawn when this site was built.\n"]
    for name, (words, page, _) in DRAWN.items():
        how = f"How it is made: [{_title(docs / page)}](../{page})."
        lines.append(f"## {words}\n\n[![{words}]({name}.png)](../{page})\n\n{how}\n")
    lines += ["## From the other pages\n", "Larger models, and runs of papers.\n"]
    for place in sorted(docs.glob("*.md")):
        pictures = PICTURE.findall(place.read_text("utf-8"))
        if pictures:
            lines.append(f"### {_title(place)}\n\nFrom [{_title(place)}](../{place.name}).\n")
        lines += [f"![{words}](../{file})\n\n*{prose(words.rstrip('.'))}.*\n" for words, file in pictures]
    return "\n".join(lines)


def _title(page: Path) -> str:
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")


if __name__ == "__main__":
    draw(FOLDER)
