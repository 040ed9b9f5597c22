"""Write the tables of docs/scale.md from the results of bench.scale and bench.kills.

python -m bench.scale_tables
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.marked import put_between_marks

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"


def figures(scale: dict[str, Any], kills: dict[str, Any]) -> str:
    """Return one row per measurement that was run."""
    rows = [["what", "target", "measured", "load of the machine, cores"]]
    if "merge" in scale:
        one = scale["merge"]
        seen = f"{one['cpu_seconds']:.0f} s of one core ({one['seconds']:.0f} s on the clock), {one['peak_mb']:.0f} MB"
        rows.append([f"merge of {one['shards']:,} shards of 30 x 9", "60 s, 1 GB", seen, _load(one)])
    for name, title in (("minilm", "MiniLM"), ("smollm2", "SmolLM2")):
        if name in scale:
            seen = f"{scale[name]['ratio']:.2f}x ({scale[name]['shards']} shards)"
            rows.append([f"two workers against one, {title}, one thread each", "1.8x", seen, _load(scale[name])])
    if "ray" in scale:
        seen = f"{scale['ray']['ratio']:.2f}x the time"
        rows.append(["Ray on this machine against two workers, after start-up", "1.1x", seen, _load(scale["ray"])])
    if "memory" in scale:
        one = scale["memory"]
        few, many = one["peak_mb"].values()
        counts = " against ".join(f"{count:,}" for count in one["sequences"].values())
        seen = f"{one['ratio']:.2f}x ({few:.0f} and {many:.0f} MB)"
        rows.append([f"peak memory, {counts} sequences", "1.1x", seen, _load(one)])
    if kills.get("kills"):
        who = ", ".join(f"{count} {name}" for name, count in kills["by_victim"].items())
        seen = f"{kills['identical']} of {kills['kills']}; {kills['finished_shards_redone']} finished shards done again"
        rows.append([f"random kills ({who}) that end in the same survey", "50 of 50", seen, ""])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---|---|---|---|", *lines[1:]])


def _load(one: dict[str, Any]) -> str:
    return f"{one['load_average']:.1f}, {one['cores']}"


def with_figures(page: str, table: str) -> str:
    return put_between_marks(page, "figures", "bench/scale_tables.py", table)


def write() -> None:
    known = [_read(name) for name in ("scale.json", "kills.json")]
    PAGE.write_text(with_figures(PAGE.read_text(), figures(*known)))


def _read(name: str) -> dict[str, Any]:
    path = Path(__file__).with_name(name)
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    write()
