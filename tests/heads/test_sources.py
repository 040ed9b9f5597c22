"""Every source gives the same pattern, and damaged files are refused or harmless."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.heads.generate import sink_window, union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.heads.read_pattern import read_pattern
from tests.heads.test_source_refusals import EYE, MTX, npy, npz, refusal, written

SPARSE = ("csr", "csc", "coo", "lil", "dok", "dia", "bsr")


def same(pattern: Pattern, other: Pattern, rtol: float = 1e-15) -> None:
    assert (pattern.n, pattern.n_keys, pattern.causal) == (other.n, other.n_keys, other.causal)
    np.testing.assert_array_equal(pattern.starts, other.starts)
    np.testing.assert_array_equal(pattern.columns, other.columns)
    np.testing.assert_allclose(pattern.weights, other.weights, rtol=rtol)


def edges_of(pattern: Pattern) -> list[tuple[int, int, float]]:
    return list(zip(pattern.rows.tolist(), pattern.columns.tolist(), pattern.weights.tolist(), strict=True))


def coordinates_of(pattern: Pattern) -> dict[str, Any]:
    return {
        "n": pattern.n,
        "n_keys": pattern.n_keys,
        "rows": pattern.rows.tolist(),
        "columns": pattern.columns.tolist(),
        "weights": pattern.weights.tolist(),
    }


WRITERS: dict[str, tuple[str, Callable[[Pattern, Path], object]]] = {
    "dense npy": (".npy", lambda p, path: np.save(path, p.dense())),
    "fortran npy": (".npy", lambda p, path: np.save(path, np.asfortranarray(p.dense()))),
    "dense npz": (".npz", lambda p, path: np.savez(path, whatever=p.dense())),
    "packed npz": (".npz", lambda p, path: np.savez_compressed(path, p.dense())),
    "triples npz": (
        ".npz",
        lambda p, path: np.savez(path, rows=p.rows, columns=p.columns, weights=p.weights, n=p.n, n_keys=p.n_keys),
    ),
    "sparse npz": (".npz", lambda p, path: scipy.sparse.save_npz(path, p.sparse())),
    "old sparse npz": (".npz", lambda p, path: scipy.sparse.save_npz(path, scipy.sparse.coo_matrix(p.sparse()))),
    "mtx": (".mtx", lambda p, path: scipy.io.mmwrite(path, p.sparse(), precision=17)),
    "dense mtx": (".mtx", lambda p, path: scipy.io.mmwrite(path, p.dense(), precision=17)),
    "json": (".json", lambda p, path: path.write_text(json.dumps(coordinates_of(p)))),
}
SQUARE_WRITERS: dict[str, tuple[str, Callable[[Pattern, Path], object]]] = {
    "edges json": (".json", lambda p, path: path.write_text(json.dumps(edges_of(p)))),
    "txt": (".txt", lambda p, path: path.write_text("".join(f"{i} {j}\t{w!r}\n" for i, j, w in edges_of(p)))),
    "csv": (
        ".csv",
        lambda p, path: path.write_text(
            "row,column,weight\r\n" + "".join(f"{i},{j}, {w!r}\r\n" for i, j, w in edges_of(p))
        ),
    ),
    "unsized npz": (".npz", lambda p, path: np.savez(path, rows=p.rows, columns=p.columns, weights=p.weights)),
}


@st.composite
def patterns(draw: st.DrawFn, square: bool = False) -> Pattern:
    n = draw(st.integers(1, 7))
    n_keys = n if square else draw(st.integers(1, 7))
    dense = np.zeros((n, n_keys))
    for row in range(n):
        support = draw(st.lists(st.integers(0, n_keys - 1), min_size=1, unique=True))
        dense[row, support] = draw(st.lists(st.floats(1e-3, 1e3), min_size=len(support), max_size=len(support)))
    return read_pattern(dense, normalise=True)


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=15)
@given(pattern=patterns())
def test_every_file_format_gives_the_pattern_back(kind: str, pattern: Pattern) -> None:
    suffix, write = WRITERS[kind]
    with tempfile.TemporaryDirectory() as folder:
        read = read_pattern(written(suffix, lambda path: write(pattern, path), Path(folder)))
    same(read, pattern)
    assert read.name == "a"


@pytest.mark.parametrize("kind", SQUARE_WRITERS)
@settings(max_examples=15)
@given(pattern=patterns(square=True))
def test_every_list_of_edges_gives_the_pattern_back(kind: str, pattern: Pattern) -> None:
    suffix, write = SQUARE_WRITERS[kind]
    with tempfile.TemporaryDirectory() as folder:
        same(read_pattern(written(suffix, lambda path: write(pattern, path), Path(folder))), pattern)


@given(patterns(), st.sampled_from(SPARSE), st.booleans())
def test_memory_sources_agree(pattern: Pattern, form: str, old: bool) -> None:
    dense = pattern.dense()
    matrix = (scipy.sparse.csr_matrix if old else scipy.sparse.csr_array)(dense).asformat(form)
    tensor = torch.from_numpy(dense)
    for source in (
        dense,
        matrix,
        tensor.clone().requires_grad_(),
        tensor.to_sparse(),
        coordinates_of(pattern),
        {
            key: np.asarray(value) if isinstance(value, list) else value
            for key, value in coordinates_of(pattern).items()
        },
        pattern,
    ):
        same(read_pattern(source, name="asked"), pattern)
        assert read_pattern(source, name="asked").name == "asked"


@given(patterns(square=True), st.randoms(use_true_random=False), st.data())
def test_order_of_entries_and_scale_of_rows_do_not_matter(pattern: Pattern, random: Any, data: st.DataObject) -> None:
    edges = edges_of(pattern)
    random.shuffle(edges)
    same(read_pattern(edges), pattern)
    scale = data.draw(st.lists(st.floats(1e-6, 1e6), min_size=pattern.n, max_size=pattern.n))
    scaled = [(i, j, w * scale[i]) for i, j, w in edges]
    same(read_pattern(scaled, normalise=True), pattern, rtol=1e-14)
    rows, columns, weights = zip(*scaled, strict=True)
    shuffled = scipy.sparse.coo_array((weights, (rows, columns)), shape=(pattern.n, pattern.n))
    same(read_pattern(shuffled, normalise=True), pattern, rtol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_masks_give_uniform_weights(causal: bool, tmp_path: Path) -> None:
    pattern = sink_window(9, 3, causal=causal)
    mask = pattern.dense() > 0
    unweighted = [edge[:2] for edge in edges_of(pattern)]
    coordinates = {key: value for key, value in coordinates_of(pattern).items() if key != "weights"}
    sources: list[Any] = [
        mask,
        mask.astype(np.int8),
        mask.astype(np.uint64),
        torch.from_numpy(mask),
        torch.from_numpy(mask).int(),
        scipy.sparse.csr_array(mask),
        scipy.sparse.coo_matrix(mask.astype(int)),
        unweighted,
        tuple(unweighted),
        set(unweighted),
        np.argwhere(mask).tolist(),
        list(np.argwhere(mask)),
        coordinates,
        {**coordinates, "weights": None, "n_keys": None},
        written(".npy", lambda path: np.save(path, mask), tmp_path),
        written(".npz", lambda path: np.savez(path, mask), tmp_path),
        written(".json", lambda path: path.write_text(json.dumps(coordinates)), tmp_path),
        written(
            ".txt",
            lambda path: path.write_text("\ufeff# i j\n\n" + "\n".join(f"{i};{j}" for i, j in unweighted)),
            tmp_path,
        ),
        written(".mtx", lambda path: scipy.io.mmwrite(path, scipy.sparse.coo_array(mask), field="pattern"), tmp_path),
        str(tmp_path / "a.npy"),
    ]
    for source in sources:
        same(read_pattern(source, causal=causal), pattern)


@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
@pytest.mark.parametrize("dense", [False, True])
def test_symmetric_matrix_market_files(field: str, dense: bool, tmp_path: Path) -> None:
    """Against scipy's writer and reader, for a graph and its adjacency."""
    if dense and field == "pattern":
        field = "real"
    adjacency = np.array([[0, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]])
    values = adjacency if dense else scipy.sparse.coo_array(adjacency)
    path = written(".mtx", lambda path: scipy.io.mmwrite(path, values, field=field, symmetry="symmetric"), tmp_path)
    assert "symmetric" in path.read_text()
    same(read_pattern(path, normalise=True), read_pattern(adjacency))
    same(read_pattern(scipy.io.mmread(path), normalise=True), read_pattern(adjacency))


def test_explicit_falses_of_a_mask_are_ignored() -> None:
    matrix = scipy.sparse.coo_array((np.array([True, False, True]), ([0, 0, 1], [0, 1, 1])), shape=(2, 2))
    assert read_pattern(matrix).columns.tolist() == [0, 1]


def test_integers_that_are_counts_are_weights() -> None:
    counts = np.array([[3, 1], [0, 2]])
    np.testing.assert_array_equal(read_pattern(counts, normalise=True).dense(), [[0.75, 0.25], [0, 1]])
    assert "Row 0 sums to 4" in refusal(counts)


def test_floats_of_zero_and_one_are_weights() -> None:
    ones = np.array([[1.0, 1.0], [0.0, 1.0]])
    assert "Row 0 sums to 2" in refusal(ones)
    np.testing.assert_array_equal(read_pattern(ones, normalise=True).dense(), [[0.5, 0.5], [0, 1]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_attention_maps(dtype: torch.dtype) -> None:
    attention = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).softmax(-1).to(dtype)
    pattern = read_pattern(attention, normalise=True)
    wanted = attention.double() / attention.double().sum(1, keepdim=True)
    np.testing.assert_allclose(pattern.dense(), wanted.numpy(), rtol=1e-14)


def test_a_pattern_is_read_again_with_a_mask() -> None:
    same(read_pattern(window(5, 2, causal=True)), window(5, 2, causal=True))
    lower = read_pattern(np.tril(np.full((4, 4), True)))
    assert read_pattern(lower, causal=True).causal
    assert "looks into the future" in refusal(window(5, 3), causal=True)


def test_a_pattern_of_real_size_in_text(tmp_path: Path) -> None:
    pattern = union_of_permutations(1024, 8)
    same(read_pattern(written(".txt", lambda path: SQUARE_WRITERS["txt"][1](pattern, path), tmp_path)), pattern)


def test_reading_does_not_change_the_source() -> None:
    matrix = scipy.sparse.coo_array(([2.0, 1.0, 5.0], ([1, 0, 0], [0, 1, 0])), shape=(2, 2))
    before = [array.copy() for array in (matrix.data, *matrix.coords)]
    read_pattern(matrix, normalise=True)
    for array, was in zip((matrix.data, *matrix.coords), before, strict=True):
        np.testing.assert_array_equal(array, was)


GOOD_FILES: list[tuple[str, bytes]] = [
    (".npy", npy(EYE)),
    (".npz", npz(a=EYE)),
    (".npz", npz(rows=np.arange(3), columns=np.arange(3))),
    (".mtx", (MTX + "coordinate real general\n2 2 2\n1 1 1\n2 2 1\n").encode()),
    (".mtx", (MTX + "array integer general\n2 2\n1\n0\n0\n1\n").encode()),
    (".json", b'{"n": 2, "rows": [0, 1], "columns": [0, 1], "weights": [1.0, 1]}'),
    (".json", b"[[0, 0], [1, 1]]"),
    (".csv", b"row,column,weight\n0,0,1\n1,1,1.0\n"),
]


def read_or_refusal(path: Path) -> Pattern | str:
    try:
        return read_pattern(path)
    except RefusalError as refused:
        return str(refused)


@settings(max_examples=200)
@given(st.sampled_from(GOOD_FILES), st.data())
def test_damage_is_refused_or_harmless_and_nothing_else(good: tuple[str, bytes], data: st.DataObject) -> None:
    suffix, whole = good
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(content[:cut])
        answer = read_or_refusal(path)
    if isinstance(answer, Pattern):
        np.testing.assert_allclose(np.add.reduceat(answer.weights, answer.starts[:-1]), 1)
    else:
        assert str(path) in answer
