"""The record of a compiled head: it is loaded without torch, and contradictions are refused by name."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from attnscope.commands.compile.chart import attention
from attnscope.commands.compile.record import Compiled, Try
from attnscope.commands.compile.words import certificate_lines, title_words, verdict
from attnscope.commands.records import load
from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import DTYPES, Accuracy
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.certificate import certify
from attnscope.heads.generate import window
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern
from attnscope.reports.record import ask


def made(dtype: str = "float32", *, sharp: float = 12.0, causal: bool = True, n: int = 12, keys: int = 12) -> Compiled:
    """Return a head with orthonormal keys; with little sharpness it leaks."""
    if n == keys:
        pattern = window(n, 2, causal=causal)
    else:
        pattern = Pattern.of(np.arange(n), np.arange(n), np.ones(n), n=n, n_keys=keys, name="<b>[red]x</b>")
    queries = np.zeros((n, keys))
    queries[pattern.rows, pattern.columns] = sharp * keys**0.5 + math.pi
    precision = getattr(torch, dtype)
    accuracy = Accuracy(dtype=dtype)  # type: ignore[arg-type]
    head = Head(torch.tensor(queries, dtype=precision), torch.eye(keys, dtype=precision), pattern.causal, "basis")
    certificate = certify(head, pattern, accuracy)
    arrays = head.arrays()
    return Compiled(
        queries=arrays[0],
        keys=arrays[1],
        certificate=certificate,
        target=pattern.entries(),
        method="basis",
        why="basis, because it was written down.",
        seed=3,
        seconds=1.25,
        bounds=lower_bounds(pattern, accuracy),
        tried=(
            Try(4, 0, math.inf, math.inf, False, 0.5, refused="It is too narrow."),
            Try(keys, 3, certificate.ratio_error, certificate.leak, certificate.reached, 0.75, "basis"),
        ),
        notes={"draws": 2},
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_loaded_record_equals_saved_record(dtype: str, tmp_path: Path) -> None:
    compiled = made(dtype)
    again = load(compiled.save(tmp_path / "head.safetensors"))
    assert isinstance(again, Compiled)
    assert again.to_json() == compiled.to_json()
    assert (again.certificate, again.bounds, again.tried) == (compiled.certificate, compiled.bounds, compiled.tried)
    assert np.array_equal(again.queries, compiled.queries)
    assert np.array_equal(again.keys, compiled.keys)
    assert again.head.dtype == dtype
    assert torch.equal(again.head.queries, compiled.head.queries)
    assert np.array_equal(again.pattern.dense(), compiled.pattern.dense())
    assert (again.pattern.name, again.pattern.causal) == (compiled.pattern.name, True)
    assert certify(again.head, again.pattern, Accuracy(dtype=dtype)) == again.certificate  # type: ignore[arg-type]
    assert again.save(tmp_path / "again.safetensors").read_bytes() == (tmp_path / "head.safetensors").read_bytes()


def test_a_rectangular_head_survives_a_round_trip(tmp_path: Path) -> None:
    compiled = made(n=6, keys=9)
    again = Compiled.load(compiled.save(tmp_path / "head.safetensors"))
    assert (again.queries.shape, again.keys.shape, again.pattern.n_keys) == ((6, 9), (9, 9), 9)
    assert Compiled.load(tmp_path).to_json() == compiled.to_json()  # the folder that holds it


def test_the_file_is_what_other_readers_of_safetensors_expect(tmp_path: Path) -> None:
    compiled = made("bfloat16")
    with safe_open(compiled.save(tmp_path / "head.safetensors"), "pt") as stored:
        assert stored.get_tensor("X").dtype == torch.bfloat16
        assert torch.equal(stored.get_tensor("X") @ stored.get_tensor("W_Q"), compiled.head.queries)
        assert stored.get_tensor("pattern_rows").dtype == torch.int32
        assert json.loads(stored.metadata()["certificate"]) == compiled.to_json()


def changed(path: Path, *, metadata: dict[str, Any] | None = None, **tensors: Any) -> Path:
    """Return a copy of the file with changed numbers in its certificate, or changed tensors (None removes one)."""
    with safe_open(path, "pt") as stored:
        kept = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        words = {name: value for name, value in stored.metadata().items() if name != "sha256"}
    certificate = json.loads(words["certificate"]) | (metadata or {})
    words["certificate"] = json.dumps({name: value for name, value in certificate.items() if value != "leave out"})
    kept = {name: tensor for name, tensor in (kept | tensors).items() if tensor is not None}
    save_file(kept, path.with_name("changed.safetensors"), words)
    return path.with_name("changed.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"d": "12"}, "d: a whole number is needed, not text"),
        ({"d": 11}, "d: 11 is stored, and 12 follows"),
        ({"n": 13}, "n: 13 is stored, and 12 follows"),
        ({"n_keys": 13}, "n_keys: 13 is stored, and 12 follows"),
        ({"k": 1}, "k: 1 is stored, and 2 follows"),
        ({"dtype": "float64"}, "dtype: 'float64' is stored, and 'float32' follows"),
        ({"causal": False}, "causal: False is stored"),
        ({"method": "joint"}, "method: 'joint' is stored, and 'basis' follows"),
        ({"leak": None}, "leak: nan exceeds its limit"),
        ({"leak": 0.5}, "leak: 0.5 exceeds its limit, and no row is failing"),
        ({"failing": 3, "reached": False, "verdict": "accuracy not reached"}, "failing: 3 is stored"),
        ({"reached": False}, "reached: False is stored, and True follows"),
        ({"verdict": "proved minimal"}, "verdict: 'proved minimal' is stored"),
        ({"proved_minimal": True}, "proved_minimal: True is stored"),
        ({"lower_bound": 12}, "lower_bound: 12 is stored"),
        ({"lower_bound_reason": "Because."}, "lower_bound_reason: 'Because.' is stored"),
        ({"bounds": []}, "bounds: none of them is a proof"),
        ({"bounds": [{"name": "one"}]}, "bounds.*missing"),
        ({"tried": [{"width": 1}]}, "tried.*missing"),
        ({"tried": "many"}, "tried: a list is needed, not text"),
        ({"why": 3}, "why: text is needed, not 3"),
        ({"why": "leave out"}, "why: missing"),
        ({"notes": {}}, "notes: {} is stored"),
        ({"surprise": 1}, "unknown fields.*surprise"),
    ],
)
def test_a_certificate_that_contradicts_the_file_is_refused_by_name(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = made().save(tmp_path / "head.safetensors")
    with pytest.raises(RefusalError, match=rf"is damaged \(.*{says}"):
        load(changed(path, metadata=change))


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"pattern_rows": None}, "pattern_rows: missing"),
        ({"pattern_rows": None, "pattern_columns": None, "pattern_weights": None}, "pattern_rows: missing"),
        ({"pattern_weights": torch.ones(23, dtype=torch.float64)}, "pattern_weights: shares are above 0"),
        ({"pattern_weights": torch.ones(5, dtype=torch.float64)}, "pattern_columns: 23 rows, 23 columns, 5 weights"),
        ({"pattern_columns": torch.zeros(23, dtype=torch.int32)}, "pattern_columns: entries are not in order"),
        ({"pattern_columns": torch.full((23,), 99, dtype=torch.int32)}, "pattern_columns: a key lies outside"),
        ({"pattern_columns": torch.ones(23)}, "pattern_columns: a list of whole numbers is needed"),
        ({"pattern_rows": torch.zeros(23, dtype=torch.int32)}, "pattern_rows: each of the 12 queries needs a key"),
    ],
)
def test_tensors_that_are_not_a_pattern_are_refused_by_name(tensors: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = made().save(tmp_path / "head.safetensors")
    with pytest.raises(RefusalError, match=says):
        load(changed(path, **tensors))


def test_a_causal_pattern_with_later_keys_is_refused(tmp_path: Path) -> None:
    compiled = made()
    columns = compiled.target.columns.copy()
    columns[0] = 1
    path = replace(compiled, target=replace(compiled.target, columns=columns)).save(tmp_path / "head.safetensors")
    with pytest.raises(RefusalError, match="pattern_columns: a query looks into the future"):
        load(path)


def test_an_older_file_is_loaded(tmp_path: Path) -> None:
    """Older files have no field `forced`, and null for infinite numbers."""
    path = replace(made(), forced=True).save(tmp_path / "head.safetensors")
    tried = [{**one, "ratio_error": None, "leak": None} for one in made().to_json()["tried"]]
    again = Compiled.load(changed(path, metadata={"forced": "leave out", "tried": tried}))
    assert again.forced
    assert math.isnan(again.tried[0].leak)


def test_a_head_without_a_certificate_of_a_compilation_is_refused(tmp_path: Path) -> None:
    from attnscope.commands.compile.export import save_head

    compiled = made()
    path = save_head(tmp_path / "h.safetensors", compiled.head, compiled.certificate.to_json(), compiled.pattern)
    with pytest.raises(RefusalError, match=r"is damaged \(.*missing"):
        load(path)
    with pytest.raises(RefusalError, match=r"load the \.safetensors"):
        Compiled.from_json(compiled.to_json())


def test_the_table_has_what_was_tried() -> None:
    table = made().table()
    assert list(table["width"]) == [4, 12]
    assert list(table["refused"]) == ["It is too narrow.", ""]
    assert math.isinf(table["leak"][0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_picture_shows_what_the_torch_head_attends_to(dtype: str, causal: bool) -> None:
    compiled = made(dtype, sharp=1.0, causal=causal)
    expected = compiled.head.attention(3, 9).double().numpy()
    assert attention(compiled, 3, 9) == pytest.approx(expected, abs=1e-6)


def test_overflow_is_drawn_as_the_largest_error() -> None:
    compiled = made()
    queries = compiled.queries.copy()
    queries[0] = np.inf
    broken = replace(compiled, queries=queries)
    assert np.isnan(attention(broken, 0, 1)).any()
    assert broken.chart() is not None


def test_words() -> None:
    compiled, leaking = made(), made(sharp=0.5)
    assert compiled.sentences()[0].startswith("A head of width 12 realises causal window, n=12, k=2 in float32 (")
    said = leaking.sentences()[0]
    assert f"misses the accuracy in {leaking.certificate.failing} of 12 rows: in the worst of them its leak is " in said
    assert "above the limit of 0.01" in said
    assert "ratio error" not in said  # which is as asked
    assert (verdict(compiled).level, verdict(leaking).level) == ("calm", "critical")
    assert "TOO LARGE" in {label: note for label, _, note in certificate_lines(leaking)}["leak"]
    assert title_words(made(n=6, keys=9)) == "<b>[red]x</b>: 6 × 9, k = 1, float32"
    assert repr(compiled) == f"<Compiled: {title_words(compiled)}, {compiled.verdict}>"


def test_the_page_escapes_and_shows_everything() -> None:
    compiled = made(n=6, keys=9)
    page = ask(compiled, "render")
    assert "<b>[red]x</b>" not in page
    assert "&lt;b&gt;[red]x&lt;/b&gt;" in page
    for words in (
        *compiled.sentences()[2:],
        "It is too narrow.",
        "Lower bounds of the width",
        "data:image/png",
        "draws",
    ):
        assert words in page
    assert page.count("<script") == 2  # specifications as data, and the page's own
    assert page.count('class="for-dark"') == page.count('class="for-light"') == 1
    assert page == ask(compiled, "render")
    assert "<b>[red]" not in compiled._repr_html_()


def test_reading_and_drawing_need_no_torch(tmp_path: Path) -> None:
    path = made("bfloat16").save(tmp_path / "head.safetensors")
    code = f"""
import sys
from attnscope.commands.records import load
from attnscope.reports.terminal import print_record
compiled = load({str(path)!r})
compiled.write_page({str(tmp_path / "head.html")!r})
compiled.chart(), compiled.sentences(), compiled.table(), compiled.pattern, compiled._repr_html_(), repr(compiled)
compiled.save({str(tmp_path / "again.safetensors")!r})
print_record(compiled, files={{"Head": {str(path)!r}}})
assert "torch" not in sys.modules, "torch"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "A head of width 12 realises causal window, n=12, k=2 in bfloat16" in done.stdout
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
