"""`python -m bench.minimal_pairs.table`: write what the records of the benchmarks of verdicts say into docs/explain.md.

It reads verdict_*.json (`bench.minimal_pairs.verdict`) and headline_words.json (`bench.headline_words`). Intervals are
those of a bootstrap that draws whole frames, because pairs of one frame share all words but the cause; of a few frames
there is none. A named word that is not the cause of the pair may be another cause: only for microbes it cannot.
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
HEADING = (
    *("model", "pairs, frames", "named first", "named (at most two words)", "as many words at random"),
    "names that are it",
)
DRAWS = 4000
FEWEST_FRAMES = 12  # of which an interval can be drawn


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
        f"| {' | '.join(HEADING)} |",
        f"|{'---|' * len(HEADING)}",
    ]
    for subject, title in SUBJECTS.items():
        rows = rows_of(subject)
        frames = len({row["id"][:-1] for row in rows})
        low, high = by_frame(rows)
        interval = f" ({percent(low)} to {percent(high)})" if frames >= FEWEST_FRAMES else ""
        right = percent(sum(row["named"] for row in rows) / sum(len(row["words"]) for row in rows))
        cells = (title, f"{len(rows)}, {frames}", share(rows, "first"), f"{share(rows, 'named')}{interval}")
        lines.append(f"| {' | '.join((*cells, share(rows, 'chance'), right))} |")
    rows = rows_of("smollm2_judging")
    kinds = sorted({row["kind"] for row in rows})
    shares = {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}
    ranked = sorted(kinds, key=lambda kind: -sum(row["named"] for row in shares[kind]) / len(shares[kind]))
    by_kind = listed([f"{kind} {share(shares[kind], 'named')} of {len(shares[kind])}" for kind in ranked])
    kept: dict[str, dict[str, dict[str, int]]] = json.loads((HERE.parent / "headline_words.json").read_text())
    windows = []
    for model, seeds in kept.items():
        found = {key: sum(one[key] for one in seeds.values()) for key in next(iter(seeds.values()))}
        windows.append(
            f"- {model}: in {found['texts']} windows {found['named']} words are said to have decided. With fresh "
            f"words, {found['wrong']} of them leave the answer within a tenth, and {found['weak']} leave more than two "
            f"thirds of it. {found['changing']} words are said to be able to change it. In {found['unnamed']} windows "
            "no word is named."
        )
    return "\n".join([*lines, "", f"By kind, SmolLM2: {by_kind}.", "", HOW, "", *windows])


HOW = (
    "Named words that change nothing: on random windows of WikiText-2, every word that is said to have decided was "
    "replaced again by words that the trial did not use (`python -m bench.headline_words`)."
)


def main(page: Path = PAGE) -> None:
    text = put_between_marks(page.read_text("utf-8"), "minimal_pairs", WRITER, section())
    write_atomically(page, text.encode())


if __name__ == "__main__":
    main()
