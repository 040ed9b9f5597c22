"""Bad input: one sentence that says what to do, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import SMALL
from tests.command import attnscope
from tests.specimens import TEXT, save_specimen


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_specimen(tmp_path_factory.mktemp("good"))


def refused(*words: str | Path, says: str, out: Path | None = None, stdin: str | None = None) -> None:
    done = attnscope(*words, *(("--out", out) if out else ()), stdin=stdin)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("attnscope: "), done.stderr
    assert says in last, last
    assert done.stdout == ""
    if out:
        assert not out.exists()


def _copy(model: Path, to: Path) -> Path:
    return Path(shutil.copytree(model, to))


def test_missing_folder(tmp_path: Path) -> None:
    refused("scan", tmp_path / "nowhere", says="nowhere", out=tmp_path / "o")


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused("scan", tmp_path / "empty", says="config.json", out=tmp_path / "o")


def test_corrupt_safetensors(model: Path, tmp_path: Path) -> None:
    broken = _copy(model, tmp_path / "m")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    refused("scan", broken, *SMALL, says="safetensors", out=tmp_path / "o")


def test_truncated_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x00" * 20)
    refused("scan", tmp_path / "model.gguf", says="model.gguf", out=tmp_path / "o")


def test_config_without_weights(model: Path, tmp_path: Path) -> None:
    bare = _copy(model, tmp_path / "m")
    (bare / "model.safetensors").unlink()
    refused("scan", bare, says="--random-init", out=tmp_path / "o")


def test_wrong_dtype(model: Path, tmp_path: Path) -> None:
    refused("scan", model, "--dtype", "flot32", says="float32", out=tmp_path / "o")


def test_unknown_measure_suggests_the_nearest(model: Path, tmp_path: Path) -> None:
    refused("scan", model, "--measures", "entropi", says="Did you mean 'entropy'?", out=tmp_path / "o")


def test_unknown_threshold(model: Path, tmp_path: Path) -> None:
    refused("scan", model, "--threshold", "sink_mas=1", says="sink_mass", out=tmp_path / "o")


def test_thresholds_outside_their_range(model: Path, tmp_path: Path) -> None:
    refused("scan", model, "--threshold", "sink_mass=-1", says="from 0 to 1", out=tmp_path / "o")


def test_empty_corpus(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("  \n")
    refused("scan", model, tmp_path / "c.txt", says="empty", out=tmp_path / "o")


def test_empty_standard_input(model: Path, tmp_path: Path) -> None:
    refused("scan", model, "-", says="empty", out=tmp_path / "o", stdin="")


def test_binary_corpus(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_bytes(b"text\x00\x01\x02")
    refused("scan", model, tmp_path / "c.txt", says="binary", out=tmp_path / "o")


def test_corpus_that_is_not_utf8_says_the_byte(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_bytes(b"caf\xe9 au lait")
    refused("scan", model, tmp_path / "c.txt", says="0xe9", out=tmp_path / "o")


def test_truncated_gz(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:-12])
    refused("scan", model, tmp_path / "c.txt.gz", says="c.txt.gz", out=tmp_path / "o")


def test_missing_field(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps({"body": TEXT}) + "\n")
    refused("scan", model, tmp_path / "c.jsonl", says="body", out=tmp_path / "o")


def test_corpus_shorter_than_one_window(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("Too short.")
    refused("scan", model, tmp_path / "c.txt", "--max-tokens", "60", says="--max-tokens", out=tmp_path / "o")


def test_sequences_longer_than_the_positions(model: Path, tmp_path: Path) -> None:
    refused("scan", model, "--max-tokens", "65", says="64 positions", out=tmp_path / "o")


def test_output_folder_is_a_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "o").write_text("here already")
    refused("scan", model, "--out", tmp_path / "o" / "deeper", says="--out")
    assert (tmp_path / "o").read_text() == "here already"


def test_survey_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "survey.json").write_text(json.dumps({"format": "attnscope-survey", "version": 99}))
    refused("report", tmp_path / "survey.json", says="99")
    assert not (tmp_path / "report.html").exists()


def test_other_files_in_place_of_a_survey_are_refused(tmp_path: Path) -> None:
    (tmp_path / "survey.json").write_text("{}")
    refused("report", tmp_path, says="survey")
    (tmp_path / "survey.json").write_text("not json")
    refused("report", tmp_path, says="survey")


def test_missing_survey_is_refused(tmp_path: Path) -> None:
    refused("report", tmp_path / "none.json", says="none.json")


def test_surveys_that_cannot_be_compared(model: Path, tmp_path: Path) -> None:
    for name in ("entropy", "spike"):
        assert attnscope("scan", model, *SMALL, "--measures", name, "--out", tmp_path / name).returncode == 0
    refused("compare", tmp_path / "entropy", tmp_path / "spike", says="compared")


def test_a_full_disk_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    """A file-size limit simulates a full disk: the operating system refuses the write in both cases."""
    words = ["scan", str(model), *SMALL, "--out", str(tmp_path / "o")]
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"import sys; sys.argv = ['attnscope', *{words!r}]\n"
        "from attnscope.cli.main import run\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\nrun()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()


def test_empty_arguments(model: Path, tmp_path: Path) -> None:
    refused("scan", "", says="model argument is empty", out=tmp_path / "o")
    refused("scan", model, "", says="corpus argument is empty", out=tmp_path / "o")


def test_half_a_character_in_json(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"text": "fine"}\n{"text": "abc \\ud800 def"}\n')
    refused("scan", model, tmp_path / "c.jsonl", says="line 2", out=tmp_path / "o")


def test_standard_input_is_closed(model: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "attnscope.cli.main", "scan", str(model), "-", "--out", str(tmp_path / "o")]
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Standard input is closed" in done.stderr


def test_a_page_needs_a_file_name(tmp_path: Path, model: Path) -> None:
    assert attnscope("scan", model, *SMALL, "--measures", "entropy", "--out", tmp_path / "s").returncode == 0
    refused("report", tmp_path / "s", "--out", "", says="a file name")
