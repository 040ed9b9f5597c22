"""Every source of a pattern gives the same pattern, and every fault a sentence that says where it is."""

from __future__ import annotations

import io
import json
import os
import pickle
import tempfile
import zipfile
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
from attnscope.heads.entries import LARGEST
from attnscope.heads.generate import sink_window, union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.heads.read_pattern import SUFFIXES, read_pattern

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


def written(suffix: str, write: Callable[[Path], object], folder: Path) -> Path:
    path = folder / f"a{suffix}"
    write(path)
    return path


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
def test_neither_the_order_nor_the_scale_of_rows_is_seen(pattern: Pattern, random: Any, data: st.DataObject) -> None:
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


def test_a_mask_with_explicit_falses() -> None:
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


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(RefusalError) as caught:
        read_pattern(source, **options)
    sentence = str(caught.value)
    assert sentence.endswith((".", "?")), sentence
    assert "\n" not in sentence
    return sentence


EYE = np.eye(3)
TENSOR_TWICE = torch.sparse_coo_tensor(
    torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([0.5, 0.5, 1.0]), (2, 2), check_invariants=True
)
TWICE = scipy.sparse.coo_array(([0.5, 0.5, 1.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))


def csr_by_force(starts: list[int], columns: list[int]) -> scipy.sparse.csr_array:
    matrix = scipy.sparse.csr_array(np.eye(3))
    matrix.indptr, matrix.indices = np.array(starts, dtype=np.int32), np.array(columns, dtype=np.int32)
    return matrix


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (np.array([[1.0, 0], [-0.5, 1.5]]), ("Entry (1, 0) is negative",)),
        (np.array([[1.0, 0], [np.nan, 1]]), ("Entry (1, 0) is not a finite number",)),
        (np.array([[1.0, 0], [0, np.inf]]), ("Entry (1, 1) is not a finite number",)),
        (np.array([[1.0, 0], [0, 0]]), ("Row 1 is empty",)),
        (np.zeros((2, 2), dtype=bool), ("Row 0 is empty",)),
        (np.array([[1.0, 0], [0.4, 0.4]]), ("Row 1 sums to 0.8", "normalise")),
        (np.array([[1, -1], [1, 1]]), ("Entry (0, 1) is negative",)),
        (np.eye(2) * 1j, ("complex128", "real numbers")),
        (np.array([[1, None]], dtype=object), ("object", "real numbers")),
        (np.array([["1"]]), ("real numbers",)),
        (np.ones(3), ("1 dimension,", "two")),
        (np.ones((1, 1, 1)), ("3 dimensions", "two")),
        (np.array(1.0), ("0 dimensions", "two")),
        (np.zeros((0, 0)), ("at least one query",)),
        (np.ma.masked_array(EYE, EYE > 0), ("masked",)),
        (torch.eye(2) * 1j, ("real numbers",)),
        (torch.empty(2, 2, device="meta"), ("real numbers",)),
        (torch.ones(2, 2, 2).to_sparse(), ("3 dimensions",)),
        (torch.ones(2), ("1 dimension,",)),
        (TENSOR_TWICE, ("Entry (0, 1) appears twice",)),
        (TWICE, ("Entry (0, 1) appears twice",)),
        (scipy.sparse.coo_matrix(TWICE), ("Entry (0, 1) appears twice",)),
        (csr_by_force([0, 3, 3, 3], [1, 1, 2]), ("Entry (0, 1) appears twice",)),
        (csr_by_force([0, 1, 2, 3], [0, 1, 7]), ("not a well-formed sparse matrix",)),
        (csr_by_force([0, 9, 1, 3], [0, 1, 2]), ("not a well-formed sparse matrix",)),
        (scipy.sparse.coo_array(np.ones(3)), ("1 dimension",)),
        (scipy.sparse.csr_array(EYE * 1j), ("complex128",)),
        (scipy.sparse.coo_array(([1.0], ([0], [0])), shape=(2**40, 2)), (f"{LARGEST} is the largest",)),
        ([(0, 0), (1, 1.0)], ("The column of edge 1", "1.0", "whole number")),
        ([(0, 0), (True, 1)], ("The row of edge 1", "True", "whole number")),
        ([(0, 0), (np.True_, 1)], ("The row of edge 1", "whole number")),
        ([(0, -1)], ("The column of edge 0", "-1", "from 0")),
        ([(0, 10**30)], ("The column of edge 0", "from 0")),
        ([(0, 0), (1, 1, 1.0)], ("edge 1", "all a weight, or none")),
        ([(0, 0), (0, 0), (1, 1)], ("Entry (0, 0) appears twice",)),
        ([(0, 0, 1.0), (1, 1, "x")], ("The weight of edge 1", "'x'", "not a number")),
        ([(0, 0, True)], ("The weight of edge 0", "True")),
        ([(0, 0, float("nan"))], ("Entry (0, 0) is not a finite number",)),
        ([(0, 0, 10**400)], ("Entry (0, 0) is not a finite number",)),
        ([(0, 0), (2, 1)], ("Row 1 is empty",)),
        ([(0, 1)], ("Row 1 is empty",)),
        ([(0, 0), "ab"], ("edge 1", "'ab'")),
        ([0, 1], ("edge 0", "row and column")),
        ([(0, 0), (1, 0, 1.0, 2)], ("edge 1",)),
        ([(0, (1, 2))], ("The column of edge 0", "(1, 2)")),
        ([np.array(3)], ("edge 0",)),
        ([[0.5, 0.5], [1.0, 0.0]], ("The row of edge 0", "0.5", "whole number")),
        ([], ("no edges",)),
        ({"n": 1, "rows": [0]}, ("no 'columns'",)),
        ({"rows": [0], "columns": [0]}, ("no 'n'",)),
        ({"n": 1, "rows": [0], "colums": [0]}, ("'colums'", "Did you mean 'columns'?")),
        ({"n": 1, "rows": [0], "columns": [0, 1]}, ("1 rows and 2 columns",)),
        ({"n": 1, "rows": [0], "columns": [0], "weights": []}, ("1 rows and 0 weights",)),
        ({"n": 1, "rows": 0, "columns": [0]}, ("The 'rows'", "list")),
        ({"n": 1, "rows": np.zeros((1, 1), int), "columns": [0]}, ("The 'rows'", "list")),
        ({"n": 1, "rows": [0.0], "columns": [0]}, ("Item 0 of the rows", "whole number")),
        ({"n": 1, "rows": np.array([0.0]), "columns": [0]}, ("Item 0 of the rows", "whole number")),
        ({"n": 1, "rows": [False], "columns": [0]}, ("Item 0 of the rows", "whole number")),
        ({"n": 1, "rows": [0], "columns": [0], "weights": [None]}, ("Item 0 of the weights", "not a number")),
        ({"n": 10**12, "rows": [0], "columns": [0]}, ("The n of", "1000000000000")),
        ({"n": 1, "n_keys": 2**24, "rows": [0], "columns": [0]}, ("The n_keys of",)),
        ({"n": True, "rows": [0], "columns": [0]}, ("The n of", "True")),
        ({"n": 1.5, "rows": [0], "columns": [0]}, ("The n of", "1.5")),
        ({"n": 0, "rows": [], "columns": []}, ("The n of", "at least one")),
        ({"n": 1, "n_keys": 0, "rows": [0], "columns": [0]}, ("The n_keys of", "at least one")),
        ({"n": 2, "rows": [0, 1], "columns": [0, 2]}, ("Entry (1, 2) lies outside", "2 x 2")),
        ({"n": 2, "rows": [], "columns": []}, ("Row 0 is empty",)),
        (None, ("NoneType", "give a path")),
        (3.5, ("float", "give a path")),
        (b"pattern.npz", ("bytes", "give a path")),
    ],
)
def test_refusals_from_memory(source: Any, words: tuple[str, ...]) -> None:
    sentence = refusal(source)
    assert all(word in sentence for word in words), sentence
    assert sentence[0].isupper()


def test_a_causal_pattern_must_be_square_and_not_look_ahead(tmp_path: Path) -> None:
    assert "2 x 3" in refusal(np.array([[1.0, 0, 0], [0, 1, 0]]), causal=True)
    path = written(".npy", lambda path: np.save(path, np.array([[0.0, 1], [0, 1]])), tmp_path)
    assert refusal(path, causal=True).startswith(f"In {path}, entry (0, 1) looks into the future")


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def promising(shape: str) -> bytes:
    """A numpy file whose header promises more than follows."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, data in members.items():
            zipped.writestr(name.replace("_", "."), data)
    return file.getvalue()


MTX = "%%MatrixMarket matrix "
BAD_FILES: dict[str, tuple[str, bytes | str, tuple[str, ...]]] = {
    "truncated npy": (".npy", npy(EYE)[:-9], ("cannot be read as a numpy array",)),
    "truncated npy header": (".npy", npy(EYE)[:30], ("cannot be read as a numpy array",)),
    "promising npy": (".npy", promising("(1000000, 100000000)"), ("cannot be read as a numpy array",)),
    "negative npy": (".npy", promising("(-1, 2)"), ("cannot be read as a numpy array",)),
    "pickled npy": (".npy", npy(np.array([{}], dtype=object)), ("cannot be read as a numpy array", "objects")),
    "pickle as npy": (".npy", pickle.dumps(EYE), ("is not a numpy array",)),
    "text as npy": (".npy", "0 1", ("is not a numpy array",)),
    "npy of one dimension": (".npy", npy(np.ones(3)), ("1 dimension,",)),
    "complex npy": (".npy", npy(EYE * 1j), ("complex128",)),
    "text array": (".npy", npy(np.array([["a"]])), ("real numbers",)),
    "empty row in npy": (".npy", npy(np.zeros((2, 2))), (", row 0 is empty",)),
    "no elements": (".npy", npy(np.zeros((0, 3))), ("at least one query",)),
    "truncated npz": (".npz", npz(a=EYE)[:-30], ("cannot be read as a numpy archive",)),
    "pickled npz": (".npz", npz(a=np.array([[{}]], dtype=object)), ("cannot be read as a numpy archive",)),
    "text as npz": (".npz", "hello", ("is not a numpy archive",)),
    "several arrays": (".npz", npz(a=EYE, b=EYE), ("holds 2 arrays (a, b)", "rows, columns and weights")),
    "no arrays": (".npz", archive(), ("holds 0 arrays (none)",)),
    "promising npz": (".npz", archive(a_npy=promising("(1000000, 100000000)")), ("cannot be read as a numpy archive",)),
    "foreign zip": (".npz", archive(a_txt=b"hello"), ("holds a.txt", "not a numpy array")),
    "rows alone": (".npz", npz(rows=np.array([0])), ("no 'columns'",)),
    "rows and more": (".npz", npz(rows=np.array([0]), columns=np.array([0]), extra=EYE), ("'extra'",)),
    "float rows": (".npz", npz(rows=np.array([0.0]), columns=np.array([0])), ("Item 0 of the rows",)),
    "flat sparse": (".npz", npz(format=np.array(b"csr"), shape=np.array([2, 2]), data=EYE), ("sparse matrix",)),
    "unknown sparse": (".npz", npz(format=np.array(b"xyz"), shape=np.array([2, 2]), data=EYE), ("sparse matrix",)),
    "broken sparse": (
        ".npz",
        npz(
            format=np.array(b"csr"),
            shape=np.array([2, 2]),
            data=np.ones(3),
            indices=np.array([0, 1, 1]),
            indptr=np.array([0, 1000, 3]),
        ),
        ("not a well-formed sparse matrix",),
    ),
    "no banner": (".mtx", "hello\n", ("does not begin like a Matrix Market file",)),
    "truncated mtx": (".mtx", MTX + "coordinate real general\n2 2 2\n1 1 1\n", ("promises 2 entries and holds 1",)),
    "long mtx": (".mtx", MTX + "array real general\n1 1\n1\n1\n", ("promises 1 entries and holds 2",)),
    "outside mtx": (".mtx", MTX + "coordinate real general\n% c\n2 2 1\n5 1 1\n", ("Line 4", "(5, 1)", "2 x 2")),
    "from zero mtx": (".mtx", MTX + "coordinate real general\n2 2 1\n0 1 1\n", ("Line 3", "(0, 1)", "from 1")),
    "twice in mtx": (".mtx", MTX + "coordinate real general\n1 1 2\n1 1 .5\n1 1 .5\n", ("entry (0, 0) appears twice",)),
    "complex mtx": (".mtx", MTX + "coordinate complex general\n1 1 1\n1 1 1 1\n", ("'complex'", "real")),
    "skew mtx": (".mtx", MTX + "coordinate real skew-symmetric\n1 1 0\n", ("'skew-symmetric'", "general")),
    "promising mtx": (".mtx", MTX + "array real general\n200000 200000\n1\n", ("promises 40000000000 entries",)),
    "no rows mtx": (".mtx", MTX + "array integer general\n0 2\n1\n", ("Line 2", "size of 0")),
    "no sizes mtx": (".mtx", MTX + "coordinate real general\n% comment\n", ("no line with 3 sizes",)),
    "odd sizes mtx": (".mtx", MTX + "coordinate real general\n2 two 1\n", ("Size 1 in line 2", "'two'")),
    "odd count mtx": (".mtx", MTX + "coordinate real general\n2 2 many\n", ("Line 2", "'many'")),
    "negative count mtx": (".mtx", MTX + "coordinate real general\n2 2 -1\n", ("promises -1 entries",)),
    "odd weight mtx": (".mtx", MTX + "coordinate real general\n1 1 1\n1 1 x\n", ("weight of line 3", "'x'")),
    "odd row mtx": (".mtx", MTX + "coordinate real general\n1 1 1\n1.5 1 1\n", ("row of line 3", "1.5")),
    "few words mtx": (".mtx", MTX + "coordinate real general\n1 1 1\n1 1\n", ("Line 3", "2 words, not 3")),
    "array without values": (".mtx", MTX + "array pattern general\n1 1\n", ("an array without values",)),
    "flat symmetric": (".mtx", MTX + "array real symmetric\n2 3\n1\n0\n1\n", ("2 x 3 symmetric",)),
    "foreign end": (".mtx", (MTX + "array integer general\n1 1\n1").encode() + b"\xff", ("cannot be read as text",)),
    "infinite integer": (".mtx", MTX + "array integer general\n1 1\ninf\n", ("entry (0, 0) is not a finite",)),
    "not JSON": (".json", "{rows: [0]}", ("cannot be read as JSON", "line 1")),
    "truncated JSON": (".json", '{"n": 1, "rows": [0', ("cannot be read as JSON",)),
    "deep JSON": (".json", "[" * 10**5, ("cannot be read as JSON",)),
    "latin JSON": (".json", b'{"n": "\xe9"}', ("cannot be read as JSON",)),
    "long number": (".json", '{"n": ' + "9" * 5000 + "}", ("cannot be read as JSON",)),
    "JSON number": (".json", "3", ("neither an object", "edges")),
    "JSON NaN": (".json", '{"n": 1, "rows": [0], "columns": [0], "weights": [NaN]}', ("entry (0, 0) is not a finite",)),
    "large n": (".json", '{"n": 99999999999, "rows": [0], "columns": [0]}', ("The n of", "99999999999")),
    "boolean in JSON": (".json", '{"n": 1, "rows": [true], "columns": [0]}', ("Item 0 of the rows", "whole number")),
    "JSON keys": (".json", '{"n": 1, "row": [0], "col": [0]}', ("'row'", "Did you mean 'rows'?")),
    "words": (".txt", "0 0\n1 one\n", ("The column of line 2", "'one'")),
    "fractions": (".csv", "0,0\n\n0.5,1\n", ("The row of line 3", "0.5")),
    "negative": (".csv", "0,-1\n", ("The column of line 1", "-1")),
    "empty field": (".csv", "0,,0.5\n", ("The column of line 1", "''")),
    "four columns": (".csv", "0,0,1,1\n", ("line 1", "row and column")),
    "now and then a weight": (".txt", "0 0 1\n1 1\n", ("line 2", "all a weight, or none")),
    "bad weight": (".txt", "0 0 half\n", ("The weight of line 1", "'half'")),
    "nan weight": (".txt", "0 0 nan\n", ("entry (0, 0) is not a finite",)),
    "only a header": (".csv", "row,column\n# nothing\n", ("no edges",)),
    "binary text": (".txt", b"\xff\xfe\x00", ("cannot be read as text",)),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_refusals_from_files_name_the_file(case: str, tmp_path: Path) -> None:
    suffix, data, words = BAD_FILES[case]
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    sentence = refusal(path)
    assert str(path) in sentence
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_file(suffix: str, tmp_path: Path) -> None:
    path = written(suffix, lambda path: path.touch(), tmp_path)
    assert refusal(path) == f"{path} is empty: write the pattern to it again."


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    assert "There is no pattern file" in refusal(tmp_path / "none.npz")
    assert "There is no pattern file" in refusal("x" * 5000)
    assert "There is no pattern file" in refusal("a\0b.npz")
    assert "There is no pattern file" in refusal("~nobody_of_that_name/a.npz")
    assert "is a folder" in refusal(tmp_path)
    assert "argument is empty" in refusal("  ")
    assert "Did you mean '.npz'?" in refusal(written(".npzz", lambda path: path.touch(), tmp_path))
    assert "(none)" in refusal(written("", lambda path: path.touch(), tmp_path))
    os.mkfifo(tmp_path / "a.json")
    assert "not a regular file" in refusal(tmp_path / "a.json")


def test_suffixes_may_be_capitals(tmp_path: Path) -> None:
    path = written(".JSON", lambda path: path.write_text("[[0, 0]]"), tmp_path)
    assert read_pattern(path).n == 1


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(".json", lambda path: path.write_text("[[0, 0]]"), tmp_path)

    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    assert "Permission denied" in refusal(path)


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
