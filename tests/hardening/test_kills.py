"""Kill a scan with SIGKILL before, during and after each write.

A server process imports everything once and forks a scan for every command that it reads. In a scan that is to die, the
write steps of `attnscope.core.files` send SIGKILL to their own process, so that no handler and no `finally` runs, as in
a power cut.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnscope.commands.scan.survey.survey import Survey
from tests.command import offline
from tests.specimens import TEXT, save_specimen

PARTIAL, SURVEY, REPORT, LOCK = "survey.partial.json", "survey.json", "report.html", "survey.lock"

NURSERY = """
import json, os, pathlib, signal, sys
import torch
torch.set_num_threads(1)
import attnscope.commands.scan.run, attnscope.commands.scan.diagnose, attnscope.commands.scan.page
import attnscope.commands.scan.shard as checkpoint
from attnscope.cli.main import run
from attnscope.core import files

checkpoint._EVERY_SECONDS = 0.0  # what is done is written after every batch


def deadly(name, moment, nth):
    seen, opened, moved = [0], files.open_draft, pathlib.Path.replace

    def die(now, target):
        if now == moment and target.name == name and seen[0] == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def open_draft(draft, path):
        seen[0] += path.name == name
        die("before", path)
        return opened(draft, path)

    def replace(draft, path):
        die("during", path)  # the draft is whole and on disk
        answer = moved(draft, path)
        die("after", path)
        return answer

    files.open_draft, pathlib.Path.replace = open_draft, replace


for line in sys.stdin:
    words, death = json.loads(line)
    child = os.fork()
    if not child:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        if death:
            deadly(*death)
        sys.argv = ["attnscope", *words]
        run()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass
class Nursery:
    process: subprocess.Popen[str]

    def scan(self, *words: str | Path, death: tuple[str, str, int] | None = None) -> int:
        """Run a scan and return its exit code; a negative one is the signal that ended it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([["scan", *map(str, words)], death]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**offline(), "TOKENIZERS_PARALLELISM": "false"},
    ) as process:
        yield Nursery(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str | Path, ...]:
    place = tmp_path_factory.mktemp("given")
    (place / "corpus.txt").write_text(TEXT)
    options = ("--samples", "4", "--max-tokens", "16", "--batch-size", "2", "--measures", "entropy")
    return (save_specimen(place / "model"), place / "corpus.txt", *options, "--out")


@pytest.fixture(scope="module")
def unbroken(nursery: Nursery, words: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Survey:
    out = tmp_path_factory.mktemp("unbroken")
    assert nursery.scan(*words, out) == 0
    return Survey.load(out / SURVEY)


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".part")}


# which write, when, its number (the work so far is written after each of two batches, and at the end), and what is left
DEATHS = [
    ((PARTIAL, "before", 1), set()),
    ((PARTIAL, "during", 1), set()),
    ((PARTIAL, "after", 1), {PARTIAL}),
    ((PARTIAL, "during", 2), {PARTIAL}),
    ((SURVEY, "during", 1), {PARTIAL}),
    ((SURVEY, "after", 1), {PARTIAL, SURVEY}),
    ((REPORT, "during", 1), {PARTIAL, SURVEY}),
    ((REPORT, "after", 1), {PARTIAL, SURVEY, REPORT}),
]


@pytest.mark.parametrize(("death", "left"), DEATHS, ids=lambda one: " ".join(sorted(map(str, one))))
@pytest.mark.thorough
def test_a_killed_scan_leaves_whole_files_and_can_be_resumed(
    nursery: Nursery,
    words: tuple[str | Path, ...],
    unbroken: Survey,
    tmp_path: Path,
    death: tuple[str, str, int],
    left: set[str],
) -> None:
    assert nursery.scan(*words, tmp_path, death=death) == -signal.SIGKILL
    assert files_in(tmp_path) == {*left, LOCK}  # the file stays, but no process locks it any more
    drafts = list(tmp_path.glob(".*.part"))
    assert len(drafts) == (death[1] == "during")  # so it died at the intended write
    if PARTIAL in left:
        read = Survey.load(tmp_path / PARTIAL).provenance["corpus"]["sequences"]
        assert read == (2 if death[0] == PARTIAL else 4)
    if SURVEY in left:
        assert Survey.load(tmp_path / SURVEY).cells == unbroken.cells
    if REPORT in left:
        assert (tmp_path / REPORT).read_text().rstrip().endswith("</html>")
    again = ("--resume",) if DEATHS.index((death, left)) % 4 != 1 else ()  # with and without --resume
    assert nursery.scan(*words, tmp_path, *again) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [REPORT, SURVEY]
    assert Survey.load(tmp_path / SURVEY).cells == unbroken.cells
