"""read_pattern(source) -> Pattern: a pattern from a file or an object, or a refusal that says what is wrong with it.

    read_pattern("pattern.npz")   read_pattern(scipy_matrix)   read_pattern(attention_map, normalise=True)
    read_pattern(mask, causal=True)   read_pattern([(0, 0), (1, 0), (1, 1)])
    read_pattern({"n": 2, "rows": [0, 1, 1], "columns": [0, 0, 1], "weights": [1, 0.25, 0.75]})

| source                         | content                                                                           |
|--------------------------------|-----------------------------------------------------------------------------------|
| numpy array, torch tensor, .npy | a dense matrix; booleans or the integers 0 and 1 are a mask: uniform weights      |
| scipy.sparse, .mtx, .npz       | a sparse matrix; .npz as scipy.sparse.save_npz writes it                          |
| .npz of numpy                  | one matrix, or the arrays rows, columns and, if wanted, weights, n, n_keys        |
| dict, .json                    | coordinates, with the keys n, n_keys, rows, columns, weights                      |
| list, .json, .txt, .csv        | edges (row, column) or (row, column, weight): a square pattern                    |
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.files import neighbour_meant
from attnscope.heads import entries as read
from attnscope.heads.entries import LARGEST, Entries
from attnscope.heads.pattern import Pattern


def read_pattern(source: Any, *, causal: bool = False, normalise: bool = False, name: str | None = None) -> Pattern:
    """Read a pattern from a file or an object.

    Parameters
    ----------
    source : Pattern, array, tensor, sparse matrix, mapping, list, str or Path
        Weights, a mask, coordinates or edges, or a file of these: .npy, .npz, .mtx, .json, .txt or .csv.
    causal : bool
        Query i sees keys 0 to i only.
    normalise : bool
        Divide every row by its sum.
    name : str, optional
        The name of the pattern. Default: the name of the file.

    Returns
    -------
    Pattern
        The weights that are not zero.

    Raises
    ------
    RefusalError
        If the source cannot be read, its rows do not sum to 1, or a causal pattern looks ahead.

    Examples
    --------
    >>> attnscope.read_pattern([(0, 0), (1, 0), (1, 1)])
    Pattern('pattern', 2 x 2, k=2)
    """
    if isinstance(source, Pattern):
        if not causal or source.causal:
            return replace(source, name=name or source.name)
        same = Entries(source.rows, source.columns, source.weights, source.n, source.n_keys)
        return _pattern(same, causal, False, name or source.name)
    if not isinstance(source, str | Path):
        return _pattern(_from_memory(source), causal, normalise, name or "pattern")
    path = _checked(source)
    entries = SUFFIXES[path.suffix.lower()](path)
    try:
        return _pattern(entries, causal, normalise, name or path.stem)
    except RefusalError as refusal:
        sentence = refusal.sentence
        raise RefusalError(f"In {path}, {sentence[0].lower()}{sentence[1:]}") from refusal


def _pattern(entries: Entries, causal: bool, normalise: bool, name: str) -> Pattern:
    n, n_keys = entries.n, entries.n_keys
    if max(n, n_keys) > LARGEST:
        raise RefusalError(f"The pattern is {n} x {n_keys}, and {LARGEST} is the largest size: give a smaller one.")
    if causal and n != n_keys:
        raise RefusalError(
            f"The pattern is {n} x {n_keys}, and a causal one must be square, because query i sees the keys 0 to i: "
            "give a square one, or leave `causal=` out."
        )
    weights = (entries.weights != 0).astype(np.float64) if entries.uniform else entries.weights
    where, normalise = (entries.rows, entries.columns), normalise or entries.uniform
    return Pattern.of(*where, weights, n=n, n_keys=n_keys, causal=causal, normalise=normalise, name=name)


def _from_memory(source: Any) -> Entries:
    import scipy.sparse

    torch = sys.modules.get("torch")  # without torch there are no tensors
    if torch is not None and isinstance(source, torch.Tensor):
        return read.from_torch(source, "The tensor")
    if isinstance(source, np.ndarray):
        return read.from_dense(source, "The array")
    if scipy.sparse.issparse(source):
        return read.from_sparse(source, "The sparse matrix")
    if isinstance(source, Mapping):
        return read.from_coordinates(source, "the mapping")
    if isinstance(source, list | tuple | set | frozenset):
        return read.from_edges(source, "the list")
    raise RefusalError(
        f"A pattern cannot be read from {type(source).__name__}: give a path, an array, a sparse matrix, a list of "
        "edges, or a mapping with n, rows and columns."
    )


def _checked(source: str | Path) -> Path:
    """Return the path if it names a non-empty file with a known suffix."""
    if not str(source).strip():
        raise RefusalError(f"The pattern argument is empty: name a file ({', '.join(SUFFIXES)}).")
    path = Path(source)
    try:
        path = path.expanduser()
        exists, folder, file = path.exists(), path.is_dir(), path.is_file()
        size = path.stat().st_size if exists else 0
    except (OSError, ValueError, RuntimeError):  # the path is too long, has a zero byte, or names an unknown user
        exists, folder, file, size = False, False, False, 0
    shortened = str(source) if len(str(source)) <= 80 else f"{str(source)[:77]}..."
    if not exists:
        hint = neighbour_meant(path) if shortened == str(source) else ""
        raise RefusalError(f"There is no pattern file {shortened!r}: check the path.{hint}")
    if folder:
        raise RefusalError(f"{path} is a folder: name the pattern file in it.")
    if not file:
        raise RefusalError(f"{path} is not a regular file: save the pattern to one first.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        hint = nearest(suffix, SUFFIXES) if suffix else f" Known: {', '.join(SUFFIXES)}."
        raise RefusalError(f"{path} has a suffix that no pattern format has ({suffix or 'none'}).{hint}")
    if size == 0:
        raise RefusalError(f"{path} is empty: write the pattern to it again.")
    return path


def _loaded(path: Path, load: Callable[[], Any], kind: str) -> Any:
    """Call a library's reader and turn any exception into a refusal: damaged bytes make parsers raise nearly anything.

    `load` must contain the library's own call only.
    """
    try:
        return load()
    except Exception as error:
        reason = " ".join(str(error).split())[:120].rstrip(".:") or type(error).__name__
        refusal = f"{path} cannot be read as {kind} ({reason}): write it again, or give another file."
        raise RefusalError(refusal) from error


def _npy(path: Path) -> Entries:
    _refuse_foreign(path, b"\x93NUMPY", "a numpy array")
    # The file is mapped, not read: a damaged header may promise more than memory holds.
    array = _loaded(path, lambda: np.load(path, mmap_mode="r", allow_pickle=False), "a numpy array")
    return read.from_dense(array, str(path))


def _npz(path: Path) -> Entries:
    import scipy.sparse

    _refuse_foreign(path, b"PK", "a numpy archive")

    def arrays() -> dict[str, Any]:
        # The file is opened here, because numpy leaves a damaged archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}

    def sparse() -> Any:
        with path.open("rb") as file:
            return scipy.sparse.load_npz(file)

    held = _loaded(path, arrays, "a numpy archive")
    for key, array in held.items():
        if not isinstance(array, np.ndarray):
            raise RefusalError(f"{path} holds {key}, which is not a numpy array: save it again, with numpy.savez.")
    if {"format", "shape", "data"} <= held.keys():
        return read.from_sparse(_loaded(path, sparse, "a sparse matrix"), str(path))
    if {"rows", "columns"} & held.keys():
        for key, array in held.items():
            if array.dtype.kind not in "biuf":  # numpy can store text that no Python string can hold
                raise RefusalError(f"{path} holds {array.dtype} values in {key}, not numbers: save numbers.")
        plain = {key: array[()] if array.ndim == 0 else array for key, array in held.items()}
        return read.from_coordinates(plain, str(path), size_needed=False)
    if len(held) != 1:
        raise RefusalError(
            f"{path} holds {len(held)} arrays ({', '.join(sorted(held)[:6]) or 'none'}): save one matrix, or the "
            "arrays rows, columns and weights."
        )
    (array,) = held.values()
    return read.from_dense(array, str(path))


def _mtx(path: Path) -> Entries:
    return read.from_matrix_market(_text(path), path)


def _json(path: Path) -> Entries:
    data = _loaded(path, lambda: json.loads(path.read_text(encoding="utf-8-sig")), "JSON")
    if isinstance(data, dict):
        return read.from_coordinates(data, str(path))
    if isinstance(data, list):
        return read.from_edges(data, str(path))
    raise RefusalError(f"{path} holds neither an object with n, rows and columns nor a list of edges: write one.")


def _edge_lines(path: Path) -> Entries:
    """Read lines of `row column [weight]`, separated by spaces, commas or semicolons; # begins a comment.

    A header line is allowed.
    """
    edges: list[list[int | float | str]] = []
    places: list[str] = []
    for place, whole_line in enumerate(_text(path).split("\n"), start=1):
        line = whole_line.partition("#")[0].strip()
        words = re.split(r"\s*[,;]\s*|\s+", line)
        if line and not (not edges and all(re.fullmatch(r"[\"']?[A-Za-z_]+[\"']?", word) for word in words)):
            edges.append([read.number_in(word) for word in words])
            places.append(f"line {place}")
    return read.from_edges(edges, str(path), places)


def _text(path: Path) -> str:
    return str(_loaded(path, lambda: path.read_text(encoding="utf-8-sig"), "text"))


def _refuse_foreign(path: Path, beginning: bytes, kind: str) -> None:
    """Refuse files of another kind here: numpy would fall back to pickle and raise an error about pickle."""

    def first() -> bytes:
        with path.open("rb") as file:
            return file.read(len(beginning))

    if _loaded(path, first, kind) != beginning:
        raise RefusalError(f"{path} is not {kind}: save it again, with numpy.save or scipy.sparse.save_npz.")


SUFFIXES: Mapping[str, Callable[[Path], Entries]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".mtx": _mtx,
    ".json": _json,
    ".txt": _edge_lines,
    ".csv": _edge_lines,
}
