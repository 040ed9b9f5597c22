"""A drawing of the rooms, made from the contract that `lint-imports` checks and the docstring of each room."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib import import_module

from tools.site.assemble import ROOT
from tools.site.markdown import code, prose, table

WIDTH, ROW, BOX, GAP = 860, 44, 30, 8
LETTER = 8  # pixels, about


def layers() -> list[list[str]]:
    """Return the layers from top to bottom. Rooms of one layer do not import each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (ladder,) = (contract for contract in contracts if contract.get("containers") == ["attnscope"])
    return [step.split(" | ") for step in ladder["layers"]]


def torch_free() -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (contract,) = (
        one for one in settings["tool"]["importlinter"]["contracts"] if one.get("forbidden_modules") == ["torch"]
    )
    return {module.removeprefix("attnscope.") for module in contract["source_modules"] if module.count(".") == 1}


def rooms_page() -> str:
    ladder, free = layers(), torch_free()
    rows = [(code(room), prose(_says(room))) for step in ladder for room in step]
    return "\n".join(
        [
            "# The rooms\n",
            "Every folder of `src/attnscope` is a room. A room imports from rooms below it and never from one above or "
            "beside it; `make lint` checks that. Rooms with a dashed border need no torch.\n",
            drawing(ladder, free),
            "\n## What each is for\n",
            table(("room", "in its own words"), rows),
        ]
    )


def drawing(ladder: Sequence[Sequence[str]], free: set[str]) -> str:
    """Return an SVG in the colours of the page's theme. It has no blank lines, which would end the HTML block."""
    height = ROW * len(ladder) + 20
    words = f"The rooms in {len(ladder)} steps, from {ladder[0][0]} at the top to {ladder[-1][0]} at the foot"
    lines = [
        f'<svg class="drawing" role="img" aria-label="{words}" viewBox="0 0 {WIDTH} {height}" width="100%"'
        ' font-family="monospace" font-size="13" fill="none" stroke="currentColor">'
    ]
    for step, rooms in enumerate(ladder):
        widths = [LETTER * len(room) + 2 * GAP for room in rooms]
        left = (WIDTH - sum(widths) - GAP * (len(rooms) - 1)) / 2
        top = 10 + step * ROW
        if step:
            lines.append(f'<path d="M{WIDTH / 2} {top - ROW + BOX + 1} v{ROW - BOX - 5} m-4 -4 l4 5 l4 -5"/>')
        for room, wide in zip(rooms, widths, strict=True):
            dashes = ' stroke-dasharray="4 3"' if room in free else ""
            lines.append(f'<rect x="{left:g}" y="{top}" width="{wide}" height="{BOX}" rx="5"{dashes}/>')
            lines.append(
                f'<text x="{left + wide / 2:g}" y="{top + 20}" text-anchor="middle" stroke="none" fill="currentColor">'
                f"{room}</text>"
            )
            left += wide + GAP
    return "\n".join([*lines, "</svg>"])


def _says(room: str) -> str:
    """Return the first sentence of the room's docstring."""
    return " ".join((import_module(f"attnscope.{room}").__doc__ or "").split("\n\n")[0].split())
