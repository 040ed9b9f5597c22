"""Every chart of a survey into a folder, as specification, SVG and PNG: for papers, slides and notebooks.

write_gallery(survey, "charts")        # charts/decoder-stream-relative_residual.png, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from attnscope.charts.depth_profile import depth_profile
from attnscope.charts.export import save
from attnscope.charts.head_grid import head_grid
from attnscope.charts.head_portrait import head_portrait
from attnscope.charts.rows import panels
from attnscope.core.finding import Finding
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.survey import Survey

SUFFIXES = (".json", ".svg", ".png")
MOST_PORTRAITS = 12


def gallery(survey: Survey, findings: Sequence[Finding] | None = None) -> Iterator[tuple[str, Any]]:
    """Every chart with its file name: profiles, a map for each part with a number per head, portraits of some heads.

    Portraits are of heads that findings name. Without `findings`, those of the survey with the usual thresholds.
    """
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
    found = diagnose(survey) if findings is None else findings
    for stack, site, layer, head in islice(_named(found), MOST_PORTRAITS):
        portrait = head_portrait(table, survey.cards, stack=stack, site=site, layer=layer, head=head)
        yield f"{stack}-{site}-block-{layer}-head-{head}", portrait


def _named(findings: Sequence[Finding]) -> Iterator[tuple[str, str, int, int]]:
    """Heads of findings, each once: the first of every finding, then the second, so that every kind has its turn."""
    seen: dict[tuple[str, str, int, int], None] = {}
    rows = ([(f.stack, str(f.details.get("site", "self")), *place) for place in f.heads] for f in findings)
    for turn in zip_longest(*rows):
        for head in turn:
            if head is not None and head not in seen:
                seen[head] = None
                yield head


def write_gallery(
    survey: Survey, folder: Path | str, *, theme: str = "light", findings: Sequence[Finding] | None = None
) -> tuple[Path, ...]:
    """Write every chart in every format; returns the files."""
    folder = Path(folder)
    return tuple(
        save(chart, folder / f"{_safe(name)}{suffix}", theme=theme)
        for name, chart in gallery(survey, findings)
        for suffix in SUFFIXES
    )


def _safe(name: str) -> str:
    """A survey from elsewhere may name its stacks as it likes; a file name stays inside its folder."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).lstrip(".")
