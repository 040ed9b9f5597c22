"""Workers, the parts of a job array and a single process give the same survey, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import attnscope
from attnscope.commands.scan.opened_scan import ScanRequest
from attnscope.commands.scan.run import scan
from attnscope.commands.scan.survey.shards import PLAN, Store
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.workers import _portable
from attnscope.core.errors import RefusalError
from attnscope.data import shards as cut
from attnscope.hf.loading.options import Loading, Sampling
from tests.command import attnscope as command
from tests.specimens import TEXT, byte_tokenizer, save_specimen, tiny_llama

OPTIONS: dict[str, Any] = {"samples": 160, "max_tokens": 64, "batch_size": 16, "measures": "default,qk_spectrum"}
WORDS = ("--samples", "160", "--max-tokens", "64", "--batch-size", "16", "--measures", "default,qk_spectrum")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("given")
    (folder / "corpus.txt").write_text("".join(f"{n} {TEXT}" for n in range(12000 // len(TEXT) + 2)))
    return str(save_specimen(folder / "model")), str(folder / "corpus.txt")


@pytest.fixture(scope="module")
def whole(given: tuple[str, str]) -> Survey:
    return scan(*given, **OPTIONS)


def _same(a: Survey, b: Survey) -> bool:
    apart = {"created"}
    said = [{name: value for name, value in one.provenance.items() if name not in apart} for one in (a, b)]
    return a.cells == b.cells and a.cards == b.cards and a.excerpts == b.excerpts and said[0] == said[1]


def test_two_workers_give_the_survey_of_one_process(given: tuple[str, str], whole: Survey, tmp_path: Path) -> None:
    assert _same(whole, scan(*given, **OPTIONS, workers=2, store=tmp_path / "store"))
    kept = sorted(path.name for path in (tmp_path / "store").glob("*.shard"))
    assert len(kept) == 2
    told: list[tuple[str, int]] = []
    again = scan(
        *given, **OPTIONS, store=tmp_path / "store", progress=lambda stage, done, *_: told.append((stage, done))
    )
    assert _same(whole, again)
    assert not [done for stage, done in told if stage == "scanning"]  # a finished shard never runs twice


def test_parts_of_a_job_array_meet_in_a_store(given: tuple[str, str], whole: Survey, tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = command("scan", *given, *WORDS, "--shard", "1/2", "--store", store)
    assert first.returncode == 0, first.stderr
    assert "attnscope merge" in first.stdout
    early = command("merge", store, "--out", tmp_path / "early")
    assert early.returncode == 2
    assert "Shard 1 of 2" in early.stderr
    scan(*given, **OPTIONS, shard="2/2", store=store)
    done = command("merge", store, "--out", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    merged = Survey.load(tmp_path / "merged")
    assert merged.cells == whole.cells
    assert (tmp_path / "merged" / "report.html").read_text().rstrip().endswith("</html>")
    none = command("scan", *given, *WORDS, "--shard", "3/3", "--store", store)  # more parts than shards
    assert none.returncode == 0, none.stderr
    assert "Part 3/3 has nothing to do: there are fewer shards than parts" in none.stdout
    assert (scan(*given, **OPTIONS, shard="3/3", store=store) | merged).cells == merged.cells
    with pytest.raises(RefusalError, match=r"another plan .another seed"):
        scan(*given, **OPTIONS, seed=3, store=store)


def test_an_interrupted_scan_keeps_finished_shards_and_a_checkpoint(
    given: tuple[str, str], whole: Survey, tmp_path: Path
) -> None:
    """If stopped in the second shard, the first is stored, the second is a checkpoint, and the rest runs later."""
    kept = tmp_path / "survey.partial.json"

    def stop(stage: str, done: int, total: int, tokens: int) -> None:
        if done == 144:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan(*given, **OPTIONS, checkpoint=kept, progress=stop)
    assert len(list((tmp_path / "survey.partial.shards").glob("*.shard"))) == 1
    assert Survey.load(kept).provenance["corpus"]["sequences"] == 16
    assert _same(whole, scan(*given, **OPTIONS, checkpoint=kept, resume=True))
    kept.unlink(missing_ok=True)  # as after kill -9 in the second shard
    assert _same(whole, scan(*given, **OPTIONS, checkpoint=kept, resume=True))
    with pytest.raises(RefusalError, match="another plan"):
        scan(*given, **OPTIONS, seed=4, checkpoint=kept, resume=True)


def test_workers_that_cannot_begin_leave_an_interrupted_scan_alone(given: tuple[str, str], tmp_path: Path) -> None:
    """A typo in the corpus deletes nothing; a scan that starts replaces the earlier one."""
    kept, shards = tmp_path / "survey.partial.json", tmp_path / "survey.partial.shards"
    Store.open(shards, {"seed": 3}, "ab" * 32, 2)
    kept.write_text("{}")
    (tmp_path / "typo.jsonl").write_text("{")
    with pytest.raises(RefusalError, match="is not JSON"):
        scan(given[0], tmp_path / "typo.jsonl", **OPTIONS, workers=1, checkpoint=kept)
    assert (kept.exists(), (shards / PLAN).exists()) == (True, True)
    scan(*given, **OPTIONS | {"samples": 4, "measures": "entropy"}, workers=1, checkpoint=kept)
    assert not kept.exists()
    assert json.loads((shards / PLAN).read_text())["plan"]["seed"] == 0


def test_local_workers_keep_relative_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the corpus would have another name with workers than in one process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    loading, sampling = Loading("float32", "cpu", False, 0, False, False), Sampling(4)

    def sent(corpus: str, here: bool) -> tuple[object, object]:
        asked = _portable(ScanRequest("model", corpus, None, ("entropy",), loading, sampling, None), here)
        return asked.model, asked.corpus

    assert sent("c.txt", here=True) == ("model", "c.txt")
    assert sent("c.txt", here=False) == (str(tmp_path / "model"), str(tmp_path / "c.txt"))
    assert sent("repeated", here=False)[1] == "repeated"
    (tmp_path / "repeated").write_text("a file comes first")
    assert sent("repeated", here=False)[1] == str(tmp_path / "repeated")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": 2, "shard": "1/2"}, "not both"),
        ({"workers": 2, "each": lambda *_: None}, "workers= or each="),
        ({"shard": "1/2"}, "name its folder with `store=`"),
        ({"shard": "3/2", "store": "x"}, "There is no part 3 of 2"),
    ],
)
def test_bad_input(given: tuple[str, str], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence):
        scan(given[0], given[1], **{**OPTIONS, **options})


def test_a_model_in_memory_is_refused_with_workers() -> None:
    with pytest.raises(RefusalError, match="cannot use one in memory"):
        scan(tiny_llama(), [TEXT], tokenizer=byte_tokenizer(), workers=2)


def test_workers_that_cannot_load_say_it_once(tmp_path: Path) -> None:
    with pytest.raises(RefusalError) as refusal:
        attnscope.scan(str(tmp_path / "nothing"), [TEXT], workers=2)
    assert "nothing" in str(refusal.value)
    assert "Traceback" not in str(refusal.value)


def test_shards_are_cut_by_tokens_alone() -> None:
    assert cut.SHARD_TOKENS == 8192
