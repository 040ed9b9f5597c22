"""Write docs/papers.md from the experiments' cards and the runs on record.

python tools/papers_page.py                         write it
python tools/papers_page.py --check                 exit with 1 if the page is out of date
python tools/papers_page.py --draw RESULTS.json ... draw a figure of each run into docs/papers/, then write the page

Claims and advice come from the cards, verdicts and numbers from known.json, and pictures from runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from attnscope.core.experiment import PRESETS, Claim, ExperimentCard
from attnscope.core.files import write_atomically
from attnscope.core.words import count, numeral
from attnscope.papers.cards import cards
from attnscope.papers.known import Known, known

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURES = ROOT / "docs" / "papers.md", ROOT / "docs" / "papers"
FIGURES = {"stopping_collapse": "deep-1"}  # the figure of an experiment; the first one if none is named
DRAWN = PICTURES / "pictures.json"  # captions of the pictures
WIDTH = 720  # pixels
NOT_ON_RECORD = "not on record"
NUMBERS = 3  # most numbers shown for one claim
INTRODUCTION = """# Papers

What each paper behind attnscope claims, what a run here found, and what follows for someone who trains or changes
models. `attnscope reproduce NAME` runs one again (preset `quick`, about a minute); `--preset paper` takes the paper's
sizes, or the nearest that run on a processor. Verdicts are computed from measured numbers by rules that can fail:
*reproduced*; *not reproduced* where the rule is missed; *contradicted* where the opposite was measured; *not run* where
a number is missing, or what a comparison stands on is not there. Each run's page shows the rules. Where a paper states
no number the limit is ours, and claims marked as our question are not the paper's.
*5 of 8* says that five of eight claims were reproduced here. A low count may mean that the small setting does not show
the effect: read the claims before you doubt the paper.

Written by `make tables` from the experiments and the runs on record.
"""


def page(papers: Iterable[ExperimentCard]) -> str:
    every = list(papers)
    return "\n".join([INTRODUCTION, table(every), "", *(_section(card) for card in every)])


def table(papers: Iterable[ExperimentCard]) -> str:
    """Return one row per paper: how many of its claims were reproduced at both sizes."""
    rows = ["| paper | about | `quick` | `paper` |", "|---|---|---|---|"]
    for card in papers:
        runs = {run.preset: run for run in known(card)}
        said = " | ".join(_brief(runs.get(preset)) for preset in PRESETS)
        rows.append(f"| `{card.name}` (arXiv:{card.paper}) | [{card.title}](#{card.name.lower()}) | {said} |")
    return "\n".join(rows)


def _brief(run: Known | None) -> str:
    if run is None or not run.verdicts:
        return NOT_ON_RECORD
    verdicts = list(run.verdicts.values())
    words = [f"{verdicts.count('reproduced')} of {len(verdicts)}"]
    words += [f"{verdicts.count('contradicted')} contradicted"] if "contradicted" in verdicts else []
    words += [f"{run.changed} changed since"] if run.changed else []
    return f"{', '.join(words)} ({count(run.seeds, 'seed')})"


def _section(card: ExperimentCard) -> str:
    runs = {run.preset: run for run in known(card) if run.verdicts}
    lines = [f"## {card.name}", "", f"**{card.title}** ([arXiv:{card.paper}](https://arxiv.org/abs/{card.paper})).", ""]
    lines += [card.summary, ""]
    if (words := _drawn().get(card.name)) is not None:
        lines += [f"![{words}](papers/{card.name}.png)", "", f"*{words}*", ""]
    lines += [f"**What follows from it.** {card.advice}", ""] if card.advice else []
    lines += ["| claim | expected | measured | quick | paper |", "|---|---|---|---|---|"]
    for claim in card.claims:
        verdicts = " | ".join(
            runs[preset].verdicts.get(claim.name, NOT_ON_RECORD) if preset in runs else NOT_ON_RECORD
            for preset in PRESETS
        )
        statement = f"{_cell(claim.statement)}{_other(card, claim)} | {_cell(claim.expected)}"
        lines.append(f"| {statement} | {_measured(claim, runs)} | {verdicts} |")
    takes = ", ".join(f"{preset} {card.takes[preset]}" for preset in PRESETS)
    return "\n".join([*lines, "", f"Takes, on one core: {takes}.", ""])


def _drawn() -> dict[str, str]:
    """Return the caption of each picture, by experiment."""
    found: dict[str, str] = json.loads(DRAWN.read_text("utf-8")) if DRAWN.exists() else {}
    return found


def _other(card: ExperimentCard, claim: Claim) -> str:
    return "" if claim.paper == card.paper else f" (arXiv:{claim.paper})"


def _measured(claim: Claim, runs: Mapping[str, Known]) -> str:
    """Return the numbers of the largest run that has them, as medians over its seeds."""
    found = [(preset, runs[preset].medians[claim.name]) for preset in PRESETS if claim.name in _of(runs, preset)]
    if not found:
        return "-"
    preset, medians = found[-1]
    # Quantities of the rule come first; those of `given` are only on the page of the run.
    asked = list(dict.fromkeys(bound.quantity for bound in (*claim.holds, *claim.fails)))
    said = [f"{name.replace('_', ' ')} {numeral(medians[name])}" for name in asked if name in medians]
    more = f" and {len(said) - NUMBERS} more" if len(said) > NUMBERS else ""
    return f"{preset}: {', '.join(said[:NUMBERS])}{more}"


def _of(runs: Mapping[str, Known], preset: str) -> Mapping[str, Mapping[str, float]]:
    return runs[preset].medians if preset in runs else {}


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def draw(results: Iterable[str]) -> None:
    """Draw one small picture of each run."""
    from attnscope.commands.reproduce.record import Reproduction
    from attnscope.reports.experiment_figure import experiment_figure
    from attnscope.reports.export import save

    words = _drawn()
    for place in results:
        found = Reproduction.load(place)
        drawn = [one for one in found.figures if one.kind != "table"] or list(found.figures)
        chosen = next((one for one in drawn if one.name == FIGURES.get(found.experiment)), drawn[0])
        save(experiment_figure(chosen, width=WIDTH), PICTURES / f"{found.experiment}.png", scale=1.0)
        run = f"preset {found.preset}, {count(len(found.seeds), 'seed')}"
        words[found.experiment] = f"{chosen.title.rstrip('.')}. {chosen.caption.rstrip('.')} ({run})."
    write_atomically(DRAWN, (json.dumps(words, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--draw"]:
        draw(arguments[1:])
    every = cards().values()
    fresh = page(every)
    if arguments == ["--check"]:
        return int(PAGE.read_text("utf-8") != fresh)
    write_atomically(PAGE, fresh.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
