"""Entries of a pattern as read from arrays, sparse matrices, edges, coordinates or Matrix Market text, not yet checked.

Only the form is checked here (whole numbers as indices, real numbers as weights, two dimensions); `Pattern.of` checks
whether the entries make a pattern. A mask only says to which keys a query attends, so its weights are uniform.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from attnscope.core.errors import RefusalError, nearest

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 2**24  # most queries or keys of one pattern: beyond this, a head's keys alone would not fit in memory
COORDINATE_KEYS = ("n", "n_keys", "rows", "columns", "weights")
FORMS = ("coordinate", "array")
FIELDS = ("real", "double", "integer", "pattern")
SYMMETRIES = ("general", "symmetric")
Indices = Int[np.ndarray, " entry"]
Weights = Float[np.ndarray, " entry"]
Named = Callable[[int], str]
"""A function that turns the number of an entry into its name in messages."""


@dataclass(frozen=True, eq=False)
class Entries:
    """Unchecked entries. If `uniform`, every key of a row with a weight above zero gets the same share of attention."""

    rows: Indices
    columns: Indices
    weights: Weights
    n: int
    n_keys: int
    uniform: bool = False


def from_dense(array: np.ndarray, what: str) -> Entries:
    """Read a matrix of weights, or a mask of booleans or of the integers 0 and 1."""
    if np.ma.is_masked(array):
        raise RefusalError(f"{what} has masked elements: fill them with 0, or give a plain array.")
    array = np.asarray(array)
    _refuse_odd_numbers(array.dtype, what)
    if array.ndim != 2:
        raise RefusalError(
            f"{what} has {array.ndim} dimension{'s' * (array.ndim != 1)}, and a pattern has two, queries and keys: "
            "give a matrix."
        )
    rows, columns = np.nonzero(array)
    values = array[rows, columns]
    n, n_keys = array.shape
    return Entries(rows, columns, values.astype(np.float64), n, n_keys, _is_mask(values))


def from_sparse(matrix: Any, what: str) -> Entries:
    """Read a scipy.sparse matrix or array of any format. Duplicate entries stay; they are refused later."""
    _refuse_odd_numbers(matrix.dtype, what)
    if matrix.ndim != 2:
        raise RefusalError(f"{what} has {matrix.ndim} dimension, and a pattern has two, queries and keys.")
    try:
        if matrix.format in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)  # tocoo trusts the arrays, and would read past their end
        triples = matrix.tocoo()
    except Exception as error:
        raise RefusalError(f"{what} is not a well-formed sparse matrix ({error}): build it anew.") from error
    rows, columns = (index.astype(np.int64) for index in triples.coords)
    n, n_keys = triples.shape
    return Entries(rows, columns, triples.data.astype(np.float64), n, n_keys, _is_mask(triples.data))


def from_torch(tensor: Tensor, what: str) -> Entries:
    """Read a torch tensor on any device, dense or sparse."""
    import torch

    if tensor.is_complex() or tensor.is_quantized or tensor.is_meta:
        raise RefusalError(f"{what} is not a tensor of plain real numbers: give one with values, like float32.")
    plain = tensor.detach().cpu()
    if plain.layout == torch.strided:
        return from_dense(_torch_values(plain), what)
    triples = plain if plain.layout == torch.sparse_coo else plain.to_sparse()
    if triples.sparse_dim() != 2 or triples.dense_dim() != 0:
        raise RefusalError(f"{what} has {tensor.ndim} dimensions, and a pattern has two, queries and keys.")
    rows, columns = triples._indices().numpy()  # not coalesced: duplicates must be seen
    values = _torch_values(triples._values())
    return Entries(rows, columns, values.astype(np.float64), len(triples), triples.shape[1], _is_mask(values))


def from_edges(edges: Iterable[Any], what: str, places: Sequence[str] | None = None) -> Entries:
    """Read edges, all as (row, column) or all as (row, column, weight). The largest index gives the size of the square
    pattern.

    `places` names each edge in messages, for example by its line in a file. Default: its number.
    """
    listed = list(edges)

    def name(at: int) -> str:
        return f"{places[at] if places else f'edge {at}'} of {what}"

    if not listed:
        raise RefusalError(f"There are no edges in {what}: give at least one, as row and column.")
    for at, edge in enumerate(listed):
        if not _is_sequence(edge) or len(edge) not in (2, 3):
            raise RefusalError(
                f"The entry at {name(at)} is {_shown(edge)}: give row and column, or row, column and weight (a "
                "dense matrix must be an array)."
            )
        if len(edge) != len(listed[0]):
            raise RefusalError(f"Not like the first is {name(at)}, {_shown(edge)}: give all a weight, or none.")
    rows, columns, *weights = zip(*listed, strict=True)
    return _entries(
        whole_numbers(rows, lambda at: f"The row of {name(at)}"),
        whole_numbers(columns, lambda at: f"The column of {name(at)}"),
        real_numbers(weights[0], lambda at: f"The weight of {name(at)}") if weights else None,
    )


def from_coordinates(data: Mapping[Any, Any], what: str, *, size_needed: bool = True) -> Entries:
    """Read {"n": .., "n_keys": .., "rows": [..], "columns": [..], "weights": [..]}; n_keys and weights are optional."""
    for key in data:
        if key not in COORDINATE_KEYS:
            raise RefusalError(
                f"The key {_shown(key)} of {what} has no meaning in a pattern.{nearest(str(key), COORDINATE_KEYS)}"
            )
    for key in ("n", "rows", "columns") if size_needed else ("rows", "columns"):
        if key not in data:
            raise RefusalError(
                f"There is no '{key}' in {what}: give n, rows and columns, and weights unless they are uniform."
            )

    def listed(key: str) -> tuple[Sequence[Any], Named]:
        if not _is_sequence(data[key]):
            raise RefusalError(f"The '{key}' of {what} are {_shown(data[key])}: give a list with one number per entry.")
        return list(data[key]), lambda at: f"Item {at} of the {key} of {what}"

    rows, columns = whole_numbers(*listed("rows")), whole_numbers(*listed("columns"))
    weights = None if data.get("weights") is None else real_numbers(*listed("weights"))
    for key, values in (("columns", columns), ("weights", weights)):
        if values is not None and len(values) != len(rows):
            raise RefusalError(f"There are {len(rows)} rows and {len(values)} {key} in {what}: give one per entry.")
    if "n" not in data:
        return _entries(rows, columns, weights)
    n = _size(data["n"], f"The n of {what}")
    n_keys = n if data.get("n_keys") is None else _size(data["n_keys"], f"The n_keys of {what}")
    return _entries(rows, columns, weights, n, n_keys)


def from_matrix_market(text: str, path: Path) -> Entries:
    """Read Matrix Market text (.mtx): a banner, comments, a line of sizes, and one entry a line, counted from 1.

    scipy.io.mmread is not used: it crashes the process on some damaged files (no rows, a last line that ends in a
    foreign byte), and accepts a symmetric matrix that is not square.
    """
    lines = text.split("\n")
    form, field, symmetry = _banner(lines[0], path)
    numbered = [(number, line.split()) for number, line in enumerate(lines[1:], start=2)]
    body = [(number, words) for number, words in numbered if words and not words[0].startswith("%")]
    sizes, entries = _sizes(body, form, path), body[1:]
    n, n_keys = sizes[:2]
    if symmetry == "symmetric" and n != n_keys:
        raise RefusalError(f"{path} calls a matrix of {n} x {n_keys} symmetric: make it square, or call it general.")
    promised = sizes[2] if form == "coordinate" else n * (n + 1) // 2 if symmetry == "symmetric" else n * n_keys
    if len(entries) != promised:
        raise RefusalError(f"{path} promises {promised} entries and holds {len(entries)}: write it again.")
    count = (2 if form == "coordinate" else 0) + (field != "pattern")
    for number, words in entries:
        if len(words) != count:
            raise RefusalError(f"Line {number} of {path} has {len(words)} words, not {count}: write it again.")

    def column(which: int, what: str) -> tuple[list[int | float | str], Named]:
        values = [number_in(words[which]) for _, words in entries]
        return values, lambda at: f"The {what} of line {entries[at][0]} of {path}"

    if form == "coordinate":
        rows, columns = whole_numbers(*column(0, "row")) - 1, whole_numbers(*column(1, "column")) - 1
        outside = (rows < 0) | (rows >= n) | (columns < 0) | (columns >= n_keys)
        if outside.any():
            at = int(np.argmax(outside))
            raise RefusalError(
                f"Line {entries[at][0]} of {path} names entry ({rows[at] + 1}, {columns[at] + 1}), outside {n} x "
                f"{n_keys} when counted from 1: correct it."
            )
    elif symmetry == "symmetric":  # the lower triangle, column by column
        columns, rows = np.triu_indices(n)
    else:
        columns, rows = np.divmod(np.arange(n * n_keys), n)
    weights = np.ones(len(entries)) if field == "pattern" else real_numbers(*column(-1, "weight"))
    uniform = field == "pattern" or (field == "integer" and bool(np.isin(weights, (0, 1)).all()))
    if symmetry == "symmetric":
        below = rows != columns
        rows, columns = np.concatenate([rows, columns[below]]), np.concatenate([columns, rows[below]])
        weights = np.concatenate([weights, weights[below]])
    return Entries(rows, columns, weights, n, n_keys, uniform)


def _banner(line: str, path: Path) -> tuple[str, str, str]:
    words = line.lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise RefusalError(
            f"{path} does not begin like a Matrix Market file (%%MatrixMarket matrix ...): write it again."
        )
    form, field, symmetry = words[2:]
    for word, known in ((form, FORMS), (field, FIELDS), (symmetry, SYMMETRIES)):
        if word not in known:
            raise RefusalError(f"{path} is '{word}' where a pattern must be one of {', '.join(known)}: write it so.")
    if (form, field) == ("array", "pattern"):
        raise RefusalError(f"{path} is an array without values: write it as coordinates.")
    return form, field, symmetry


def _sizes(body: list[tuple[int, list[str]]], form: str, path: Path) -> list[int]:
    wanted = 3 if form == "coordinate" else 2
    if not body or len(body[0][1]) != wanted:
        raise RefusalError(f"{path} has no line with {wanted} sizes after its comments: write it again.")
    number, words = body[0]
    sizes = whole_numbers([number_in(word) for word in words[:2]], lambda at: f"Size {at} in line {number} of {path}")
    if not sizes.all():
        raise RefusalError(f"Line {number} of {path} gives a size of 0: a pattern has at least one query and one key.")
    promised = [number_in(word) for word in words[2:]]
    if not all(isinstance(count, int) for count in promised):
        raise RefusalError(f"Line {number} of {path} says '{words[2]}', not the number of entries: correct it.")
    return [*sizes.tolist(), *(int(count) for count in promised)]


def _entries(
    rows: Indices, columns: Indices, weights: Weights | None, n: int | None = None, n_keys: int | None = None
) -> Entries:
    """Make Entries. If no size is given, the pattern is square, so that a missing row is noticed."""
    size = int(max(rows.max(initial=-1), columns.max(initial=-1))) + 1
    ones = np.ones(len(rows))
    return Entries(rows, columns, ones if weights is None else weights, n or size, n_keys or size, weights is None)


def whole_numbers(values: Sequence[Any], name: Named) -> Indices:
    for at, value in enumerate(values):
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise RefusalError(f"{name(at)} is {_shown(value)}, not a whole number: give one from 0 to {LARGEST - 1}.")
        if not 0 <= value < LARGEST:
            raise RefusalError(f"{name(at)} is {_shown(value)}: give a whole number from 0 to {LARGEST - 1}.")
    return np.array(values, dtype=np.int64)


def real_numbers(values: Sequence[Any], name: Named) -> Weights:
    numbers = np.empty(len(values))
    for at, value in enumerate(values):
        if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
            raise RefusalError(f"{name(at)} is {_shown(value)}, not a number: give a share between 0 and 1.")
        try:
            numbers[at] = value
        except OverflowError:  # a whole number that no float can hold
            numbers[at] = np.inf
    return numbers


def number_in(word: str) -> int | float | str:
    """Return the word as an int, else as a float, else unchanged, which the caller refuses."""
    if re.fullmatch(r"[+-]?\d{1,20}", word, re.ASCII):
        return int(word)
    try:
        return float(word)
    except ValueError:
        return word


def _size(value: Any, name: str) -> int:
    size = int(whole_numbers([value], lambda _: name)[0])
    if size == 0:
        raise RefusalError(f"{name} is 0: a pattern has at least one query and one key.")
    return size


def _is_sequence(values: Any) -> bool:
    return isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.ndim == 1)


def _refuse_odd_numbers(dtype: np.dtype[Any], what: str) -> None:
    if dtype.kind not in "biuf":
        raise RefusalError(f"{what} holds {dtype} values: give real numbers as shares, or a boolean mask.")


def _torch_values(values: Tensor) -> np.ndarray:
    return np.asarray(values.double().numpy() if values.is_floating_point() else values.numpy())


def _is_mask(values: np.ndarray) -> bool:
    return values.dtype.kind == "b" or (values.dtype.kind in "iu" and bool(((values == 0) | (values == 1)).all()))


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
