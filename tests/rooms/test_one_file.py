"""Adding a file registers a leaf: a measure, a variant, a construction, an experiment and a finding are added to their
rooms, and everything that lists, runs, draws or checks leaves includes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import attnscope
from attnscope.cli.main import app
from attnscope.commands.reproduce.record import Reproduction
from attnscope.core import registry
from attnscope.heads.generate import permutation
from tests.docs.lists import undocumented
from tools.variant_cards import page

FILES = {
    "attnscope.measures.planted_measure": '''
"""One half, everywhere."""

import torch
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.measure import measure


@measure(
    title="Planted measure",
    summary="One half of a share.",
    unit="share",
    high=1.0,
    scope="attention",
    sites=("self",),
    citation="arXiv:1906.04341",
    alarm=Alarm(">", 0.4, "it was planted"),
)
def planted_measure(self_mass: Tensor, query_mask: Tensor) -> Tensor:
    return torch.full_like(self_mass[..., 0], 0.5)
''',
    "attnscope.findings.planted_finding": '''
"""Says what the planted measure is."""

from collections.abc import Iterator

from attnscope.core.finding import Finding, finding
from attnscope.commands.scan.survey.readings import grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.diagnose import Thresholds


@finding(order=15, reads=("planted_measure",), summary="Planted.", citation="arXiv:1906.04341", severity="note: why")
def planted_finding(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for grid in grids(survey, "planted_measure"):
        yield Finding(
            kind=planted_finding.name,
            severity="wrong",
            stack=grid.stack,
            layers=(0,),
            heads=((0, 0),),
            sentence="Something was planted here.",
            value=float(grid.means[0, 0]),
            threshold=0.4,
            threshold_name="planted",
            citation=planted_finding.citation,
            advice="Dig it out.",
            details={"measure": "planted_measure", "site": grid.site},
        )
''',
    "attnscope.variants.planted_attention": '''
"""Attention that gives back what it got."""

from torch import Tensor

from attnscope.core.variant import variant


@variant(
    kind="output",
    title="Planted attention",
    summary="Nothing is done.",
    citation="arXiv:1906.04341",
    formula="y <- y",
    cost="none",
    keeps="there is nothing to change",
)
def planted_attention(mixed: Tensor, stream: Tensor) -> Tensor:
    return mixed
''',
    "attnscope.constructions.planted_way": '''
"""A direction for every key: any pattern, at the greatest width there is."""

import numpy as np

from attnscope.core.construction import construction
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.accuracy import Factors
from attnscope.heads.pattern import Pattern


@construction(
    title="Planted way",
    summary="One direction a key.",
    citation="arXiv:2106.03764",
    universal=True,
    fixed_width=lambda pattern: pattern.n_keys,
)
def planted_way(
    pattern: Pattern, width: int, accuracy: Accuracy, rng: np.random.Generator, advance: Advance = silent
) -> Factors:
    keys = np.eye(pattern.n_keys, width)
    return Factors(200.0 * keys[pattern.columns], keys, {})
''',
    "attnscope.explanations.planted_reason": '''
"""The first token did it."""

from torch import Tensor

from attnscope.core.explanation import explanation


@explanation(
    title="Planted reason",
    summary="The first token did it.",
    citation="arXiv:0000.00000",
    formula="1, 0, 0, ...",
    cost="nothing",
    signed=False,
)
def planted_reason(embedding: dict[str, Tensor]) -> dict[str, Tensor]:
    return {stack: vectors[:, 0] * 0 + (vectors.cumsum(0) == vectors).all(-1) for stack, vectors in embedding.items()}
''',
    "attnscope.papers.experiments.planted_paper": '''
"""A paper that claims that one is one."""

from dataclasses import dataclass

from attnscope.core.experiment import Bound, Claim, Session, Figure, Point, Result, experiment


@dataclass(frozen=True)
class Params:
    number: float = 1.0


@experiment(
    title="Planted paper",
    paper="0000.00000",
    summary="One is one.",
    presets={"quick": Params(), "paper": Params(1.5)},
    takes={"quick": "no time", "paper": "no time"},
    seeds={"quick": 1, "paper": 2},
    claims=(Claim("one", "0000.00000", "One is at least one.", "1", (Bound("number", ">=", 1.0),)),),
)
def planted_paper(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    numbers = [params.number for _ in seeds]
    figure = Figure("numbers", "Numbers", "As planted.", "x", "y", (Point.over(numbers, 0, "one"),), "bars")
    return Result({"number": numbers}, figures=(figure,))
''',
}
CATALOGS = (
    *(registry.measures, registry.variants, registry.constructions, registry.explanations),
    *(registry.experiments, registry.findings),
)


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Add the files in folders on the search paths of their rooms, and undo it afterwards."""
    folders: dict[str, Path] = {}
    before = {}
    for name, source in FILES.items():
        room, _, leaf = name.rpartition(".")
        folders[room] = tmp_path / room
        folders[room].mkdir()
        (folders[room] / f"{leaf}.py").write_text(source.lstrip())
        package = import_module(room)
        before[room] = package.__path__
        package.__path__ = [*before[room], str(folders[room])]
    _forget()
    try:
        yield folders
    finally:
        for name in FILES:
            room, _, leaf = name.rpartition(".")
            package = import_module(room)
            package.__path__ = before[room]
            sys.modules.pop(name, None)
            vars(package).pop(leaf, None)
        _forget()


def _forget() -> None:
    invalidate_caches()
    for catalog in CATALOGS:
        catalog.cache_clear()


def command(*words: str) -> str:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_new_measure_and_finding_are_scanned_reported_drawn_and_listed(
    planted: dict[str, Path], tmp_path: Path
) -> None:
    assert "planted_measure" in attnscope.catalog()
    assert "planted_measure" in {measure.card.name for measure in registry.choose(["default"])}
    survey = attnscope.scan("pocket", samples=2, max_tokens=12, measures="planted_measure,spike")
    assert survey.values("planted_measure").tolist() == [[0.5] * survey.values("planted_measure").shape[1]] * len(
        survey.values("planted_measure")
    )
    found = attnscope.diagnose(survey)
    assert found[0].kind == "planted_finding"
    assert "alarm" not in {one.kind for one in found}, "what a finding reads is told once"
    page = attnscope.report(survey, tmp_path / "report.html").read_text()
    assert "Planted measure" in page
    assert "Something was planted here." in page
    assert "planted_measure" in command("measures")
    assert "it was planted" in command("measures", "planted_measure")


def test_an_alarm_rings_while_no_finding_reads_its_measure(planted: dict[str, Path]) -> None:
    survey = attnscope.scan("pocket", samples=2, max_tokens=12, measures="planted_measure")
    (planted["attnscope.findings"] / "planted_finding.py").unlink()
    sys.modules.pop("attnscope.findings.planted_finding", None)
    _forget()
    (told,) = attnscope.diagnose(survey)
    assert (told.kind, told.details["measure"]) == ("alarm", "planted_measure")


def test_a_construction_compiles_and_is_named_in_the_help(planted: dict[str, Path], tmp_path: Path) -> None:
    compiled = attnscope.compile(permutation(6, seed=0), method="planted_way")
    assert (compiled.method, compiled.certificate.d, compiled.reached) == ("planted_way", 6, True)
    folder = planted["attnscope.constructions"]
    program = (
        f"import attnscope.constructions; attnscope.constructions.__path__.append({str(folder)!r})\n"
        "import sys; from attnscope.cli.main import app\n"
        "try: app(['compile', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "planted_way" in done.stdout


def test_a_variant_is_in_the_catalog_the_command_and_its_page(planted: dict[str, Path]) -> None:
    one = attnscope.variants("planted_attention")
    assert attnscope.variants()["planted_attention"] is one
    given = torch.ones(1, 2, 3, 4)
    assert one(given, torch.ones(1, 2, 5)) is given
    assert "Planted attention" in command("variants")
    assert "y <- y" in command("variants", "planted_attention")
    assert "planted_attention" in {card["name"] for card in json.loads(command("variants", "--json"))}
    assert "### planted_attention" in page(each.card for each in attnscope.variants().values())


def test_an_explanation_is_computed_drawn_and_chosen_by_name(planted: dict[str, Path], tmp_path: Path) -> None:
    found = attnscope.explain("pocket", "A dog", methods="planted_reason,relevance")
    assert found.names == ("relevance", "planted_reason")
    assert found.top("planted_reason", 1)[0].place == 0
    assert "Planted reason" in found.write_page(tmp_path / "page.html").read_text()
    shown = command("explain", "pocket", "A dog", "--method", "planted_reason", "--out", str(tmp_path / "out"))
    assert "Planted reason" in shown


def test_an_experiment_is_listed_run_and_drawn(planted: dict[str, Path], tmp_path: Path) -> None:
    assert "planted_paper" in {one.name for one in attnscope.reproduce()}
    assert "planted_paper" in command("reproduce")
    assert "One is at least one." in command("reproduce", "--verbose")
    shown = command("reproduce", "planted_paper", "--out", str(tmp_path / "out"))
    assert "reproduced" in shown
    read = Reproduction.load(tmp_path / "out")
    assert [claim.verdict for claim in read.claims] == ["reproduced"]
    assert (tmp_path / "out" / "charts" / "numbers.svg").exists()


def test_undocumented_leaves_are_reported(planted: dict[str, Path]) -> None:
    assert undocumented() == {
        "docs/scan.md, What is measured": ["planted_measure"],
        "docs/papers.md": ["planted_paper"],
        "docs/patterns.md": ["planted_way"],
        "docs/explain.md": ["planted_reason"],
        "docs/variants.md": ["planted_attention"],
    }


def test_registries_are_restored_afterwards() -> None:
    assert not [name for catalog in CATALOGS for name in catalog() if "planted" in name]
