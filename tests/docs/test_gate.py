"""The workflow in the docs can be copied as it stands, and the table of exit codes is that of the program."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import typer
import yaml

from attnscope.cli.main import app
from attnscope.cli.output import NOBODY_READS, REFUSED
from attnscope.cli.runner import INTERRUPTED

DOCS = Path(__file__).parents[2] / "docs"


def test_the_workflow_runs_commands_that_there_are() -> None:
    workflow = yaml.safe_load((DOCS / "gate.yml").read_text())
    steps = workflow["jobs"]["gate"]["steps"]
    typed = [step["run"] for step in steps if step.get("run", "").startswith("attnscope ")]
    assert {shlex.split(line)[1] for line in typed} == {"scan", "compare", "report"}
    group = typer.main.get_command(app)
    for line in typed:
        _, name, *words = shlex.split(line)
        context = group.commands[name].make_context(name, words)  # type: ignore[attr-defined]
        assert context.args == []
    assert any("--fail-on" in line for line in typed)


def test_the_table_of_exit_codes_is_whole() -> None:
    page = (DOCS / "other_hands.md").read_text()
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert told == {0, 1, REFUSED, INTERRUPTED, NOBODY_READS, 128 + signal.SIGTERM}
