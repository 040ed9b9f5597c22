"""Every fault of a source is refused with a message that names the faulty entry."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch

from attnscope.core.errors import RefusalError
from attnscope.heads.entries import LARGEST
from attnscope.heads.read_pattern import SUFFIXES, read_pattern


def written(suffix: str, write: Callable[[Path], object], folder: Path) -> Path:
    path = folder / f"a{suffix}"
    write(path)
    return path


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
def test_an_empty_file_is_refused(suffix: str, tmp_path: Path) -> None:
    path = written(suffix, lambda path: path.touch(), tmp_path)
    assert refusal(path) == f"{path} is empty: write the pattern to it again."


def test_missing_paths_are_refused(tmp_path: Path) -> None:
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


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(".json", lambda path: path.write_text("[[0, 0]]"), tmp_path)

    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    assert "Permission denied" in refusal(path)
