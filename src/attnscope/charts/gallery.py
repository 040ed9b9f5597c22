"""Every chart of a survey into a folder, as specification, SVG and PNG: for papers, slides and notebooks.

write_gallery(survey, "charts")        # charts/decoder-stream-relative_residual.png, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnscope.charts.depth_profile import depth_profile
from attnscope.charts.export import save
from attnscope.charts.head_grid import head_grid
from attnscope.charts.rows import panels
from attnscope.survey.survey import Survey

SUFFIXES = (".json", ".svg", ".png")


def gallery(survey: Survey) -> Iterator[tuple[str, Any]]:
    """Every chart with its file name: a profile per panel, and a map per part that has a number per head."""
    table = survey.table()
    for panel in panels(table, survey.stacks):
        card = survey.cards[panel.measure]
        stem = "-".join((panel.stack, panel.site, panel.measure))
        place: dict[str, Any] = {"stack": panel.stack, "site": panel.site}
        yield stem, depth_profile(table, card, **place)
        if panel.site != "stream":
            for part in card.parts:
                name = f"{stem}-heads" if part == "value" else f"{stem}-{part}-heads"
                yield name, head_grid(table, card, part=part, **place)


def write_gallery(survey: Survey, folder: Path | str, *, theme: str = "light") -> tuple[Path, ...]:
    """Write every chart in every format; returns the files."""
    folder = Path(folder)
    return tuple(
        save(chart, folder / f"{_safe(name)}{suffix}", theme=theme)
        for name, chart in gallery(survey)
        for suffix in SUFFIXES
    )


def _safe(name: str) -> str:
    """A survey from elsewhere may name its stacks as it likes; a file name stays inside its folder."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).lstrip(".")
