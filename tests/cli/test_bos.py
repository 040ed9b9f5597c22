"""`--bos` as a person types it, and what the screen says of BOS."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import attnscope
from tests.specimens import TEXT, save_specimen, write_gguf


def test_scan_says_how_sequences_begin(tmp_path: Path) -> None:
    model, corpus = save_specimen(tmp_path / "m"), tmp_path / "c.txt"
    corpus.write_text(TEXT)
    small = ("--samples", "2", "--max-tokens", "12", "--measures", "sink_mass", "--out", tmp_path / "o")
    done = attnscope("scan", model, corpus, *small)
    assert done.returncode == 0, done.stderr
    assert "BOS first (the tokenizer adds it)" in " ".join(done.stdout.split())
    asked = attnscope("scan", model, corpus, *small, "--bos", "no", "--json")
    bos = json.loads(asked.stdout)["provenance"]["bos"]
    assert (bos["begins"], bos["why"]) == (False, "--bos no")
    assert {"loss_with", "loss_without"} <= bos.keys()
    assert "no BOS (--bos no)" in (tmp_path / "o" / "report.html").read_text("utf-8")


def test_paths_and_collapse_follow_the_bos_setting_of_a_gguf_header(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", add_bos=True)
    model, out = tmp_path / "tiny.gguf", ("--out", tmp_path / "o")
    done = attnscope("paths", model, "ab a b", "--draws", "0", *out)
    assert done.returncode == 0, done.stderr
    assert "BOS first (the GGUF header asks for it)" in " ".join(done.stdout.split())
    assert json.loads((tmp_path / "o" / "paths-ab-a-b.json").read_text())["tokens"][0] == "<s>"
    bare = attnscope("paths", model, "ab a b", "--draws", "0", "--bos", "no", "--json", *out)
    assert json.loads(bare.stdout)["tokens"][0] == "ab"
    (tmp_path / "c.txt").write_text("ab a b ab " * 20)
    fallen = attnscope(
        "collapse", model, tmp_path / "c.txt", "--samples", "2", "--max-tokens", "8", "--no-bounds", *out
    )
    assert fallen.returncode == 0, fallen.stderr
    assert "BOS first (the GGUF header asks for it)" in " ".join(fallen.stdout.split())


def test_unknown_value_of_bos_is_refused() -> None:
    done = attnscope("scan", "pocket", "--bos", "maybe")
    assert done.returncode == 2
    assert "maybe" in done.stderr
    assert "Traceback" not in done.stderr
