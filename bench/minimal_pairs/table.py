"""`python -m bench.minimal_pairs.table`: write what the records of the benchmarks of verdicts say into docs/explain.md.

It reads verdict_*.json (`bench.minimal_pairs.verdict`) and headline_words.json (`bench.headline_words`). Intervals are
those of a bootstrap that draws whole frames, because pairs of one frame share all words but the cause.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from attnscope.core.files import write_atomically
from attnscope.core.words import percent
from attnscope.reports.words import listed
from bench.minimal_pairs.pairs import HERE
from tools.marked import put_between_marks

PAGE = HERE.parents[1] / "docs" / "explain.md"
WRITER = "bench/minimal_pairs/table.py"
SUBJECTS = {
    "smollm2_judging": "SmolLM2-135M, ten kinds, new frames",
    "minilm_held_out": "MiniLM with a linear sentiment head, held out",
    "microformer_both": "GPT-2 of microbes with a planted rule",
}
DRAWS = 4000


def rows_of(subject: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((HERE / f"verdict_{subject}.json").read_text())["pairs"]
    return rows


def by_frame(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the 95% interval of the share of named causes, drawing frames (an id without its last letter)."""
    frames = defaultdict(list)
    for row in rows:
        frames[row["id"][:-1]].append(bool(row["named"]))
    draw, shares = random.Random(0), []
    for _ in range(DRAWS):
        drawn = [named for frame in draw.choices(list(frames.values()), k=len(frames)) for named in frame]
        shares.append(sum(drawn) / len(drawn))
    shares.sort()
    return shares[round(0.025 * DRAWS)], shares[round(0.975 * DRAWS) - 1]


def share(rows: list[dict[str, Any]], key: str) -> str:
    return percent(sum(row[key] for row in rows) / len(rows))


def section() -> str:
    lines = [
        "| model | pairs | named first | named (at most two words) | as many words at random |",
        "|---|---|---|---|---|",
    ]
    for subject, title in SUBJECTS.items():
        rows = rows_of(subject)
        low, high = by_frame(rows)
        named = f"{share(rows, 'named')} ({percent(low)} to {percent(high)})"
        lines.append(f"| {title} | {len(rows)} | {share(rows, 'first')} | {named} | {share(rows, 'chance')} |")
    rows = rows_of("smollm2_judging")
    kinds = sorted({row["kind"] for row in rows})
    shares = {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}
    ranked = sorted(kinds, key=lambda kind: -sum(row["named"] for row in shares[kind]) / len(shares[kind]))
    by_kind = listed([f"{kind} {share(shares[kind], 'named')} of {len(shares[kind])}" for kind in ranked])
    kept: dict[str, dict[str, dict[str, int]]] = json.loads((HERE.parent / "headline_words.json").read_text())
    windows = []
    for model, seeds in kept.items():
        found = {key: sum(one[key] for one in seeds.values()) for key in ("texts", "named", "wrong", "unnamed")}
        windows.append(
            f"- {model}: in {found['texts']} windows verdicts name {found['named']} words; {found['wrong']} of them "
            f"leave the answer within a tenth. In {found['unnamed']} windows no word is named."
        )
    return "\n".join([*lines, "", f"By kind, SmolLM2: {by_kind}.", "", HOW, "", *windows])


HOW = (
    "Named words that change nothing: on random windows of WikiText-2, every named word was replaced again by words "
    "that the trial did not use (`python -m bench.headline_words`)."
)


def main(page: Path = PAGE) -> None:
    text = put_between_marks(page.read_text("utf-8"), "minimal_pairs", WRITER, section())
    write_atomically(page, text.encode())


if __name__ == "__main__":
    main()
