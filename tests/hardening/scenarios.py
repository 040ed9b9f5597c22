"""Commands that write files, as scenarios for disks that fail: what is there before, what is done, what must be there.

`act` does the work once; `again` goes on after a failure. Both return the exit code and what was said. `results` reads
what a user would look at: a mapping from a name to its content, without what is missing.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import attnscope as package
from attnscope.commands.scan import shard as checkpoint
from attnscope.commands.task_paths.ledger import Ledger
from attnscope.commands.timeline.read import DROPPED, parse_looks, read_run
from attnscope.commands.treat.train import Checkpoint
from attnscope.commands.watch.run_folder import RunLog
from attnscope.core.errors import RefusalError
from attnscope.data.shards import InMemory
from attnscope.engine.crew import Workers
from attnscope.hf.installed import installed, save_treated
from attnscope.papers.checkpoints import SavedSession
from tests.command import attnscope
from tests.commands.sample_treatment import sample_treatment
from tests.commands.timeline.sample import header, look
from tests.commands.treat.patients import patient
from tests.commands.watch.training import gpt2, train
from tests.reports.sample_task_paths import sample_task_paths
from tests.specimens import TEXT, save_specimen

Outcome = tuple[int, str]
Files = Mapping[str, bytes | str]
OPTIONS = ("--max-tokens", "16", "--batch-size", "2", "--measures", "entropy", "--seed", "0")


@dataclass(frozen=True)
class Scenario:
    before: Callable[[Path], object]
    act: Callable[[Path], Outcome]
    again: Callable[[Path], Outcome]
    results: Callable[[Path], Files]
    grows: bool = False  # results appear one after the other, and a success may be without the last
    spared: tuple[str, ...] = ()  # files that may stay: a lock that could not be removed, what a log had to cut off


def files(folder: Path, *names: str) -> Files:
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def tree(folder: Path) -> Files:
    """All files below a folder, without drafts and checkpoints."""
    there = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in there.items() if ".part" not in name and ".lock" not in name}


def command(*words: str | Path) -> Outcome:
    """Run a command, and keep its sentences: its other lines are progress."""
    done = attnscope(*words)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, "\n".join(line for line in done.stderr.splitlines() if line.startswith("attnscope: "))


def function(act: Callable[[], object]) -> Outcome:
    try:
        act()
    except RefusalError as refusal:
        return 2, f"attnscope: {refusal.sentence}"
    return 0, ""


def nothing(folder: Path) -> None:
    """Begin in an empty folder."""


@contextmanager
def quick() -> Iterator[None]:
    """Make shards small, save after every batch, stop the clock, draw no pages, and run workers in this process."""
    with ExitStack() as stack:
        clock = stack.enter_context(patch("attnscope.core.stamp.datetime"))
        clock.now.return_value = datetime(2026, 1, 1, tzinfo=UTC)
        small = partial(InMemory, shard_tokens=32)
        stack.enter_context(patch("attnscope.hf.loading.load.InMemory", small))
        stack.enter_context(patch.object(checkpoint, "_EVERY_SECONDS", -1.0))
        stack.enter_context(patch.object(Workers, "crew", _crew_here))
        for page in ("attnscope.commands.scan.page.render", "attnscope.reports.page.document_page"):
            stack.enter_context(patch(page, lambda *args, **kwargs: "<html></html>"))  # drawing takes longest
        log = logging.getLogger("attnscope")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        yield


@contextmanager
def _crew_here(self: Workers, job: Any) -> Iterator[Any]:
    with job.open() as opened:
        yield _CrewHere(opened)


@dataclass(frozen=True)
class _CrewHere:
    opened: Any

    @property
    def hello(self) -> Any:
        return self.opened.hello

    def each(self, tasks: Any) -> Iterator[Any]:
        return ((task, self.opened.do(task)) for task in tasks)


def scenarios(given: Path) -> dict[str, Scenario]:
    """Return all scenarios; `given` is a folder for the model and the texts that they read."""
    return {**_surveys(given), **_logs(), **_others(given)}


def _surveys(given: Path) -> dict[str, Scenario]:
    """Scans in one shard, in several, with workers; and the merge, the page and the table of shards."""
    model, corpus, store = save_specimen(given / "model"), given / "corpus.txt", given / "store"
    corpus.write_text(TEXT)
    scanned = ("scan", model, corpus, *OPTIONS)
    resume = cycle([("--resume",), ()])  # both ways to go on

    def scan(folder: Path, *words: str | Path) -> Outcome:
        return command(*scanned, "--samples", "4", "--out", folder / "out", *words)

    def again(folder: Path, *words: str | Path) -> Outcome:
        return scan(folder, *words, *next(resume))

    def results(folder: Path) -> Files:
        return files(folder / "out", "survey.json", "report.html")

    def before(folder: Path) -> None:
        shutil.copytree(given / "before", folder / "out")

    def old_files(folder: Path) -> None:
        for name in ("page.html", "table.csv"):
            (folder / name).write_bytes(b"before")

    with quick():
        for _ in range(2):  # the second survey knows all versions of what the first has imported
            assert command(*scanned, "--samples", "6", "--store", store, "--out", given / "whole")[0] == 0
        assert command(*scanned, "--samples", "2", "--out", given / "before")[0] == 0
    survey = given / "whole" / "survey.json"

    def merge(folder: Path) -> Outcome:
        return command("merge", store, "--out", folder / "out")

    def export(folder: Path) -> Outcome:
        return command("export", survey, "--out", folder / "table.csv")

    def report(folder: Path) -> Outcome:
        return command("report", survey, "--out", folder / "page.html")

    lock = ("survey.lock",)
    short, team = ("--max-tokens", "8"), ("--workers", "2")
    return {
        "scan": Scenario(nothing, lambda f: scan(f, *short), lambda f: again(f, *short), results, spared=lock),
        "scan in shards": Scenario(before, scan, again, results, spared=lock),
        "scan with workers": Scenario(nothing, lambda f: scan(f, *team), lambda f: again(f, *team), results),
        "merge": Scenario(before, merge, merge, results, spared=lock),
        "report": Scenario(old_files, report, report, lambda f: files(f, "page.html")),
        "export": Scenario(old_files, export, export, lambda f: files(f, "table.csv")),
    }


def _logs() -> dict[str, Scenario]:
    """Runs that a watch writes, a resumed one, and the rows of a task."""

    def steps(folder: Path) -> Files:
        there = (folder / "run" / "run.json").exists()
        return {f"look {step}": "read" for step in read_run(folder / "run").steps.tolist()} if there else {}

    def watch(folder: Path, resume_from: int | None = None) -> Outcome:
        first = resume_from or 0
        watching = partial(package.watch, every=1, measures="entropy", resume_from=resume_from)

        def act() -> None:
            train(gpt2(), lambda model: watching(model, folder / "run"), first=first, steps=4 - first)

        return function(act)

    def watch_again(folder: Path) -> Outcome:
        return watch(folder, min(max(0, len(steps(folder)) - 2), 3) if steps(folder) else None)

    def log(folder: Path, first: int = 0, last: int = 6) -> Outcome:
        def act() -> None:
            with RunLog.resume(folder / "run", header(), step=50 * first) as run:
                for number in range(first, last):
                    run.append(look(number))

        return function(act)

    def looks(folder: Path) -> Files:
        """Looks, and those that a resumption has cut off: steps that the training does again."""
        if not (folder / "run" / "run.json").exists():
            return {}
        beside = folder / "run" / DROPPED
        dropped = parse_looks(beside.read_bytes()).looks if beside.exists() else []
        return {f"look {one.step}": one.line() for one in (*dropped, *read_run(folder / "run").looks)}

    def rows(folder: Path, resume: bool = False) -> Outcome:
        def act() -> None:
            ledger = Ledger(folder / "rows.jsonl", {"model": "m"})
            ledger.open(resume)
            for number, row in enumerate(sample_task_paths().prompts[:4]):
                if number not in ledger.rows:
                    ledger.add(number, row)

        return function(act)

    def row_lines(folder: Path) -> Files:
        content = files(folder, "rows.jsonl").get("rows.jsonl", b"")
        assert isinstance(content, bytes)
        return {f"row {number}": line for number, line in enumerate(content.split(b"\n")[:-1])}

    spared = ("run.lock", "looks.jsonl.dropped")
    return {
        "watch": Scenario(nothing, watch, watch_again, steps, grows=True, spared=spared),
        "log": Scenario(nothing, log, log, looks, grows=True, spared=spared),
        "resumed log": Scenario(
            lambda f: log(f, last=5), partial(log, first=3), partial(log, first=3), looks, grows=True, spared=spared
        ),
        "rows": Scenario(nothing, rows, partial(rows, resume=True), row_lines),
    }


def _others(given: Path) -> dict[str, Scenario]:
    """A treated model, the command that saves it, and the parts of an experiment."""
    loaded = patient()

    def save(place: Path) -> None:
        if not place.exists():  # the real command refuses it before it trains
            with installed(loaded.model, "gated_output", seed=0):
                save_treated(loaded.model, place, tokenizer=loaded.tokenizer)

    def twin(*args: Any, save: Path, checkpoint: Path, **kwargs: Any) -> Any:
        """Train nothing, and write all that the real twin writes."""
        linear = torch.nn.Linear(2, 2)
        Checkpoint(checkpoint / "control", {}).save(linear, torch.optim.SGD(linear.parameters()), [1.0])
        save_model(save)
        return sample_treatment()

    save_model = save

    def save_alone(folder: Path) -> Outcome:
        return function(lambda: save(folder / "model"))

    def treat(folder: Path) -> Outcome:
        with patch("attnscope.commands.treat.run.treat", twin):
            return command("treat", given / "model", given / "corpus.txt", "--out", folder / "out")

    def experiment(folder: Path, resume: bool = False) -> Outcome:
        def act() -> None:
            session = SavedSession(folder / "out", {"n": 1})
            session.open(resume and (folder / "out" / "checkpoint" / "plan.json").exists())
            with patch("time.monotonic", return_value=0.0):
                answers = [session.part(f"part {number}", partial(int, number)) for number in range(2)]
            assert answers == [0, 1]

        return function(act)

    def treated(folder: Path) -> Files:
        return {name: content for name, content in tree(folder / "out").items() if ".partial" not in name}

    return {
        "treat": Scenario(nothing, treat, treat, treated, spared=("treatment.lock", "treatment.partial")),
        "save_treated": Scenario(nothing, save_alone, save_alone, lambda f: tree(f / "model")),
        "experiment": Scenario(nothing, experiment, partial(experiment, resume=True), lambda f: tree(f / "out")),
    }
