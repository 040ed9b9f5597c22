"""README and docs name everything that exists; alarm rules, exit codes and the CI workflow are up to date."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import typer
import yaml

from attnscope.cli.main import app
from attnscope.cli.output import CLOSED_OUTPUT, CRASHED, REFUSED
from attnscope.cli.runner import INTERRUPTED
from attnscope.commands.watch.rule import rules
from attnscope.core.registry import experiments, findings, measures
from tests.docs.lists import ROOT, section, undocumented
from tools import measures_table, papers_page, widths_table


def test_every_registered_name_is_documented() -> None:
    assert undocumented() == {}


def test_table_of_measures_equals_the_catalog() -> None:
    table = measures_table.measures_table(measure.card for measure in measures().values())
    text = measures_table.PAGE.read_text("utf-8")
    assert measures_table.with_table(text, table) == text, "write it anew with `make tables`"


def test_documented_widths_equal_the_shipped_table() -> None:
    assert widths_table.PAGE.read_text("utf-8") == widths_table.written(), "write it anew with `make tables`"
    one = {"method": "frame", "n": 64, "k": 1, "dtype": "float32"}
    assert "| 64 | 1 | 7 (1 seed) | not measured |" in widths_table.table([one | {"d": 7}])
    assert "| 64 | 1 | not reached | not measured |" in widths_table.table([one | {"d": None}] * 3)


def test_every_paper_is_documented_with_its_arxiv_number() -> None:
    rows = re.findall(r"^\| `(\w+)` \(arXiv:([\d.]+)", papers_page.PAGE.read_text("utf-8"), re.M)
    assert {name for name, _ in rows} == set(experiments())
    for name, paper in rows:
        assert paper in {experiments()[name].paper, *(claim.paper for claim in experiments()[name].claims)}


def test_page_of_papers_is_up_to_date() -> None:
    """Compare with the current cards: if an experiment has changed, its file is read instead of the stored card."""
    every = [one.card for one in experiments().values()]
    assert papers_page.PAGE.read_text("utf-8") == papers_page.page(every), "write it anew with `make tables`"
    for name, words in papers_page._drawn().items():
        assert words.endswith(").")
        assert (papers_page.PICTURES / f"{name}.png").exists()


def test_every_experiment_has_advice() -> None:
    silent = [name for name, one in experiments().items() if not one.advice.endswith(".")]
    assert not silent, "give them `advice=...`: a paragraph for someone who trains or changes models"


def test_contributing_lists_the_checked_layers_and_every_leaf_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    layers = re.search(r"layers = \[(.*?)\]", settings, re.S)
    assert layers
    rooms = [room for room in re.findall(r'"([^"]+)"', layers[1]) if room != "__main__"]
    shown = " ".join(section(text, "Rooms, and which way imports point").split())
    assert " > ".join(rooms) in shown
    for decorator in ("@measure", "@variant", "@construction", "@explanation", "@experiment", "@finding"):
        assert decorator in text
    assert findings()


def test_table_of_alarm_rules_equals_the_rules() -> None:
    text = (ROOT / "docs" / "watch.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:note|warning|critical).*\| ([^|]+) \|$", text, re.M))
    told = {name: dict(re.findall(r"`(\w+)=([\d.]+)`", words)) for name, words in rows.items()}
    known = {name: {word: float(value) for word, value in rule.thresholds.items()} for name, rule in rules().items()}
    assert {name: {word: float(value) for word, value in own.items()} for name, own in told.items()} == known


DOCS = Path(__file__).parents[2] / "docs"


def test_workflow_uses_existing_commands() -> None:
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


def test_table_of_exit_codes_is_complete() -> None:
    page = (DOCS / "other_hands.md").read_text()
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert told == {0, 1, REFUSED, CRASHED, INTERRUPTED, CLOSED_OUTPUT, 128 + signal.SIGTERM}
