"""`make demo`: run every command on the embedded model in one process, and write a page that links the results.

    python tools/demo.py [FOLDER]        writes FOLDER/index.html and the pages behind it (default: demo)

Each step calls the Python twin of the command printed beside it. The last step watches the training of a small language
model whose learning rate climbs too far.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import attnscope
from attnscope.commands.paths.chart import value_grid
from attnscope.commands.records import Linked, index
from attnscope.core.files import write_atomically
from attnscope.reports.record import Record, verdict
from draw_failing_run import train  # in tools/

TEXT = "The dog chased its own tail and the dog"


@dataclass(frozen=True)
class Step:
    """A question, the command that answers it, a function that calls its twin with the output folder, and one that
    draws the answer for its thumbnail."""

    question: str
    command: str
    page: str
    ask: Callable[[Path], Record]
    draw: Callable[[Any], Any] = Record.chart


def compared(folder: Path) -> Record:
    untrained = attnscope.scan("pocket", random_init=True)
    untrained.save(folder / "untrained.json")
    return attnscope.compare(untrained, attnscope.load(folder / "survey.json"))


def failed(folder: Path) -> Record:
    shutil.rmtree(folder / "too-high", ignore_errors=True)  # of an earlier demo: a watch does not overwrite a run
    return attnscope.timeline(train(folder, "too-high"))


STEPS = (
    Step(
        "Is it healthy?",
        "attnscope scan pocket",
        "scan",
        lambda _: attnscope.scan("pocket"),
        lambda survey: survey.chart("sink_mass", heads=True),
    ),
    Step(
        "What did training change?", "attnscope compare attnscope-pocket-random attnscope-pocket", "compare", compared
    ),
    Step(
        "Does depth destroy it?",
        "attnscope collapse pocket --samples 4 --max-tokens 48",
        "collapse",
        lambda _: attnscope.collapse("pocket", samples=4, max_tokens=48),
    ),
    Step(
        "Which paths carry an answer?",
        f'attnscope paths pocket "{TEXT}"',
        "paths",
        lambda _: attnscope.paths("pocket", TEXT),
        value_grid,
    ),
    Step(
        "Which words decided?",
        f'attnscope explain pocket "{TEXT}"',
        "explain",
        lambda _: attnscope.explain("pocket", TEXT),
    ),
    Step(
        "Which head looks where?", f'attnscope view pocket "{TEXT}"', "view", lambda _: attnscope.view("pocket", TEXT)
    ),
    Step(
        "Which heads can go?",
        "attnscope treat pocket --remedy prune --heads 4 --samples 16",
        "treat",
        lambda _: attnscope.treat("pocket", remedy="prune", heads=4, samples=16),
    ),
    Step(
        "What does a failing training run look like?",
        "attnscope timeline too-high",
        "timeline",
        failed,
    ),
)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("attnscope").setLevel(logging.CRITICAL + 1)  # alarms are on the page of the run
    torch.manual_seed(0)
    linked = []
    for step in STEPS:
        print(f"{step.question}  $ {step.command}", flush=True)
        record = step.ask(folder)
        page = attnscope.report(record, folder / f"{step.page}.html")
        concluded = verdict(record)
        print(f"  {concluded.sentence}")
        if isinstance(record, attnscope.Survey):
            record.save(folder / "survey.json")
            for finding in attnscope.diagnose(record):
                print(f"  {finding.severity}: {finding.sentence}")
        print(f"  {page}", flush=True)
        linked.append(Linked(step.question, step.command, page.name, concluded, step.draw(record)))
    write_atomically(folder / "index.html", index("pocket", linked).encode())
    print(f"Open {folder / 'index.html'} in a browser: it links all of them.")


if __name__ == "__main__":
    main()
