"""The position of each page. The navigation is added when the site is built, since pages in the repository are plain
Markdown. A page that is not listed here fails the build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.site.markdown import contents

NAVIGATION: Mapping[str, tuple[str, ...]] = {
    "index": (
        "Start <self>",
        "docs/tutorials/index",
        "docs/howto/index",
        "docs/reference/index",
        "docs/explanations",
        "docs/gallery/index",
        "docs/contributing/index",
    ),
    "docs/tutorials/index": (
        "healthy",
        "../collapse",
        "which_words",
        "build_a_head",
        "watch_a_run",
        "treat_it",
        "on_a_cluster",
        "../notebooks/scan_and_compare",
        "../notebooks/explain_and_paths",
        "../notebooks/watch_a_run",
    ),
    "docs/howto/index": (
        "../install",
        "gate",
        "own_model",
        "pictures_and_sound",
        "gguf",
        "own_measure",
        "../scan",
        "../compare",
        "../atlas",
        "../view",
        "../explain",
        "../treat",
        "../watch",
        "../scale",
        "../large_models",
        "../capacity_planning",
        "../other_hands",
    ),
    "docs/explanations": ("faults", "statistics", "intervals", "paths", "patterns", "relevance", "operator"),
    "docs/contributing/index": (
        "../../CONTRIBUTING",
        "rooms",
        "glossary",
        "walk",
        "house",
        "durability",
        "fuzzing",
        "../../CHANGELOG",
        "../../CODE_OF_CONDUCT",
        "../../SECURITY",
    ),
}


def add_navigation(source: Path) -> None:
    for page, below in NAVIGATION.items():
        place = source / f"{page}.md"
        place.write_text(f"{place.read_text('utf-8')}\n{contents(below, hidden=True)}", "utf-8")
