"""A run writes results, charts and a page; an interrupted run continues to the same numbers; bad input is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from attnscope.commands.reproduce.record import Reproduction
from attnscope.core import registry
from attnscope.core.errors import RefusalError
from attnscope.core.experiment import Figure, Point
from attnscope.core.hashes import hashed
from attnscope.papers import run as driver
from attnscope.papers.run import reproduce
from attnscope.reports.record import ask
from tests.papers.stand_in import NASTY, stand_in
from tests.reports.test_html import outline


@pytest.fixture(autouse=True)
def only_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "experiments", lambda: {"stand_in": stand_in})


def numbers(done: Reproduction) -> dict[str, Any]:
    return {key: value for key, value in done.to_json().items() if key != "seconds"}


def test_results_are_written_and_the_checkpoint_is_removed(tmp_path: Path) -> None:
    done = reproduce("stand_in", out=tmp_path / "o")
    names = sorted(p.name for p in (tmp_path / "o").iterdir())
    assert names == ["charts", "page.html", "results.json"]
    charts = sorted(p.name for p in (tmp_path / "o" / "charts").iterdir())
    assert charts == [f"{kind}.{suffix}" for kind in ("bars", "curves", "tracks") for suffix in ("png", "svg")]
    results = json.loads((tmp_path / "o" / "results.json").read_text(), parse_constant=pytest.fail)
    assert results == hashed(done.to_json())
    assert [claim["verdict"] for claim in results["claims"]] == [
        "reproduced",
        "not reproduced",
        "contradicted",
        "not run",
    ]
    assert done.counts == {"reproduced": 1, "not reproduced": 1, "contradicted": 1, "not run": 1}
    assert results["seeds"] == [0, 1]
    assert results["params"]["word"] == NASTY


def test_numbers_are_written_before_anything_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(driver, "draw", broken)
    with pytest.raises(RuntimeError, match="no ink"):
        reproduce("stand_in", out=tmp_path)
    assert numbers(Reproduction.load(tmp_path)) == numbers(reproduce("stand_in"))
    assert (tmp_path / "checkpoint").is_dir()


def test_saved_results_are_read_back_equal(tmp_path: Path) -> None:
    done = reproduce("stand_in", out=tmp_path)
    read = Reproduction.load(tmp_path)
    assert read.to_json() == done.to_json()
    assert read.claims == done.claims
    assert ask(read, "render") == ask(done, "render") == (tmp_path / "page.html").read_text()


def test_equal_seeds_give_equal_numbers_and_others_do_not() -> None:
    once = reproduce("stand_in", seeds=(3,))
    torch.rand(5)  # the state of torch's own generator must not matter
    assert numbers(reproduce("stand_in", seeds=[3])) == numbers(once)
    assert numbers(reproduce("stand_in", seeds=(4,)))["measured"] != numbers(once)["measured"]


def stopping_after(steps: int) -> Any:
    seen = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal seen
        seen += 1
        if seen == steps:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("steps", [1, 4, 7, 8, 12])
def test_resumed_run_equals_unbroken_run(tmp_path: Path, steps: int) -> None:
    unbroken = reproduce("stand_in")
    with pytest.raises(KeyboardInterrupt):
        reproduce("stand_in", out=tmp_path, progress=stopping_after(steps))
    kept = sorted(p.name for p in (tmp_path / "checkpoint").iterdir())
    assert "plan.json" in kept
    assert not [name for name in kept if Path(name).suffix not in (".json", ".safetensors")]
    assert numbers(reproduce("stand_in", out=tmp_path, resume=True)) == numbers(unbroken)
    assert not (tmp_path / "checkpoint").exists()


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="Did you mean 'stand_in'"):
        reproduce("stand_on")
    with pytest.raises(RefusalError, match="quick"):
        reproduce("stand_in", "quik")
    for seeds in (0, (), (1, 1), (-1,)):
        with pytest.raises(RefusalError, match="seed"):
            reproduce("stand_in", seeds=seeds)
    with pytest.raises(RefusalError, match="`out=`"):
        reproduce("stand_in", resume=True)
    with pytest.raises(RefusalError, match="`resume=`"):
        reproduce("stand_in", out=tmp_path, resume=True)


def test_without_a_paper_all_are_listed() -> None:
    assert reproduce() == (stand_in,)
    assert "dong2021" in registry.experiments()


def test_torch_threads_are_restored() -> None:
    torch.set_num_threads(2)
    try:
        reproduce("stand_in", seeds=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_it_runs_outside_the_main_thread() -> None:
    found: list[Reproduction] = []
    thread = threading.Thread(target=lambda: found.append(reproduce("stand_in", seeds=1)))
    thread.start()
    thread.join()
    assert found[0].counts["reproduced"] == 1


def test_the_page_is_self_contained_and_runs_only_its_own_script() -> None:
    page = ask(reproduce("stand_in", seeds=2), "render")
    parsed = outline(page)
    assert NASTY not in page
    assert NASTY in parsed.words()
    data, script = parsed.find("script")
    assert data["type"] == "application/json"
    assert not script
    own = page.rsplit("<script>", 1)[1].split("</script>")[0]
    assert [a["href"] for a in parsed.find("a") if not (a["href"] or "").startswith("#")] == [
        "https://arxiv.org/abs/0000.00000"
    ]
    assert not re.search(r"\bsrc=|@import|url\((?!#)", page.replace(own, ""))
    assert len(re.findall(r'<svg width="[\d.]+" ', page)) == 9  # one of each figure for every width
    clips = re.findall(r'<clipPath id="([^"]*)"', page)
    assert len(set(clips)) == len(clips) > 0
    policy = parsed.find("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    style = re.search(r"<style>(.*?)</style>", page, re.S)
    assert style
    assert policy
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    running = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src 'sha256-{running}'" in policy
    for verdict in ("reproduced", "not reproduced", "contradicted", "not run"):
        assert verdict in parsed.words()


def test_empty_figure_is_refused() -> None:
    from attnscope.reports.experiment_figure import experiment_figure

    empty = Figure("empty", "t", "c", "x", "y", (Point(0, float("nan"), "s"),))
    with pytest.raises(RefusalError, match="no finite number"):
        experiment_figure(empty)
    with pytest.raises(RefusalError, match="no finite number"):
        experiment_figure(Figure("empty", "t", "c", "x", "y", ()))


def test_logarithmic_figures_draw_zeros_at_the_floor() -> None:
    from attnscope.reports.experiment_figure import experiment_figure

    rows = tuple(Point(x, y, "s") for x, y in enumerate((1.0, 1e-3, 0.0)))
    chart = experiment_figure(Figure("f", "t", "c", "x", "y", rows, log=True)).to_dict()
    (data,) = chart["datasets"].values()
    assert [row["y"] for row in data] == [1.0, 1e-3, pytest.approx(1e-3 / 3)]
