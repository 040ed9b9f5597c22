"""Entries: where a pattern is not zero, as read from arrays, sparse matrices, edges or coordinates, not yet checked.

Only the form is judged here (whole numbers as indices, real numbers as weights, two dimensions). Whether the entries
make a pattern is for `Pattern.of` to say. Masks say where a query looks and not how much: their weights are uniform.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from attnscope.core.errors import RefusalError, nearest

if TYPE_CHECKING:
    from torch import Tensor


LARGEST = 2**24  # queries or keys of one pattern; beyond, a head's keys alone would not fit in memory
COORDINATE_KEYS = ("n", "n_keys", "rows", "columns", "weights")


@dataclass(frozen=True, eq=False)
class Entries:
    """`uniform`: weights above zero only say where a row looks; every such key gets the same share."""

    rows: Int[np.ndarray, " entry"]
    columns: Int[np.ndarray, " entry"]
    weights: Float[np.ndarray, " entry"]
    n: int
    n_keys: int
    uniform: bool = False


def from_dense(array: np.ndarray, what: str) -> Entries:
    """A matrix of weights, or a mask of booleans or of the integers 0 and 1."""
    if np.ma.is_masked(array):
        raise RefusalError(f"{what} has masked elements: fill them with 0, or give a plain array.")
    array = np.asarray(array)
    _refuse_odd_numbers(array.dtype, what)
    if array.ndim != 2:
        raise RefusalError(
            f"{what} has {array.ndim} dimension{'s' * (array.ndim != 1)}, and a pattern has two, queries and keys: "
            "give a matrix."
        )
    n, n_keys = array.shape
    rows, columns = np.nonzero(array)
    values = array[rows, columns]
    return Entries(rows, columns, _real(values), n, n_keys, uniform=_is_mask(values))


def from_sparse(matrix: Any, what: str) -> Entries:
    """A scipy.sparse matrix or array of any format. Entries given twice stay twice, and are refused later."""
    _refuse_odd_numbers(matrix.dtype, what)
    if matrix.ndim != 2:
        raise RefusalError(f"{what} has {matrix.ndim} dimension, and a pattern has two, queries and keys.")
    try:
        if matrix.format in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)  # tocoo trusts the arrays, and would read past their end
        triples = matrix.tocoo()
    except Exception as error:
        raise RefusalError(f"{what} is not a well-formed sparse matrix ({error}): build it anew.") from error
    rows, columns = triples.coords
    n, n_keys = triples.shape
    return Entries(
        rows.astype(np.int64), columns.astype(np.int64), _real(triples.data), n, n_keys, _is_mask(triples.data)
    )


def from_torch(tensor: Tensor, what: str) -> Entries:
    """A torch tensor on any device, dense or sparse."""
    import torch

    if tensor.is_complex() or tensor.is_quantized or tensor.is_meta:
        raise RefusalError(f"{what} is no tensor of plain real numbers: give one with values, like float32.")
    plain = tensor.detach().cpu()
    if plain.layout != torch.strided:
        triples = plain if plain.layout == torch.sparse_coo else plain.to_sparse()
        if triples.sparse_dim() != 2 or triples.dense_dim() != 0:
            raise RefusalError(f"{what} has {tensor.ndim} dimensions, and a pattern has two, queries and keys.")
        rows, columns = triples._indices().numpy()  # not coalesced: what is given twice must be seen twice
        values = _torch_values(triples._values())
        return Entries(rows, columns, _real(values), len(triples), triples.shape[1], _is_mask(values))
    return from_dense(_torch_values(plain), what)


def from_edges(edges: Iterable[Any], what: str, places: Sequence[str] | None = None) -> Entries:
    """(row, column) or (row, column, weight), all alike. The pattern is square and as large as the largest index.

    `places` names each edge where its number would not help, like the line of a file.
    """
    listed = list(edges)

    def place(at: int) -> str:
        return f"{places[at] if places else f'edge {at}'} of {what}"

    if not listed:
        raise RefusalError(f"There are no edges in {what}: give at least one, as row and column.")
    for at, edge in enumerate(listed):
        if not _is_sequence(edge) or len(edge) not in (2, 3):
            raise RefusalError(
                f"What stands as {place(at)} is {_shown(edge)}: give row and column, or row, column and weight (a "
                "dense matrix must be an array)."
            )
        if len(edge) != len(listed[0]):
            raise RefusalError(f"Not like the first is {place(at)}, {_shown(edge)}: give all a weight, or none.")
    rows, columns, *weights = zip(*listed, strict=True)
    return _entries(
        whole_numbers(rows, lambda at: f"The row of {place(at)}"),
        whole_numbers(columns, lambda at: f"The column of {place(at)}"),
        real_numbers(weights[0], lambda at: f"The weight of {place(at)}") if weights else None,
    )


def from_coordinates(data: Mapping[Any, Any], what: str, *, size_needed: bool = True) -> Entries:
    """{"n": .., "n_keys": .., "rows": [..], "columns": [..], "weights": [..]}; n_keys and weights may be left out."""
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
    rows = whole_numbers(_listed(data["rows"], "rows", what), lambda at: f"Item {at} of the rows of {what}")
    columns = whole_numbers(_listed(data["columns"], "columns", what), lambda at: f"Item {at} of the columns of {what}")
    weights = None
    if data.get("weights") is not None:
        weights = real_numbers(
            _listed(data["weights"], "weights", what), lambda at: f"Item {at} of the weights of {what}"
        )
    for key, values in (("columns", columns), ("weights", weights)):
        if values is not None and len(values) != len(rows):
            raise RefusalError(f"There are {len(rows)} rows and {len(values)} {key} in {what}: give one per entry.")
    if "n" not in data:
        return _entries(rows, columns, weights)
    n = _size(data["n"], f"The n of {what}")
    n_keys = n if data.get("n_keys") is None else _size(data["n_keys"], f"The n_keys of {what}")
    return _entries(rows, columns, weights, n, n_keys)


def _entries(
    rows: Int[np.ndarray, " entry"],
    columns: Int[np.ndarray, " entry"],
    weights: Float[np.ndarray, " entry"] | None,
    n: int | None = None,
    n_keys: int | None = None,
) -> Entries:
    """Square where no size is given: a row that is missing must be noticed, and not taken for a narrow pattern."""
    size = int(max(rows.max(initial=-1), columns.max(initial=-1))) + 1
    ones = np.ones(len(rows))
    return Entries(rows, columns, ones if weights is None else weights, n or size, n_keys or size, weights is None)


def whole_numbers(values: Sequence[Any], place: Callable[[int], str]) -> Int[np.ndarray, " entry"]:
    for at, value in enumerate(values):
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise RefusalError(f"{place(at)} is {_shown(value)}, not a whole number: give one from 0 to {LARGEST - 1}.")
        if not 0 <= value < LARGEST:
            raise RefusalError(f"{place(at)} is {_shown(value)}: give a whole number from 0 to {LARGEST - 1}.")
    return np.array(values, dtype=np.int64)


def real_numbers(values: Sequence[Any], place: Callable[[int], str]) -> Float[np.ndarray, " entry"]:
    numbers = np.empty(len(values))
    for at, value in enumerate(values):
        if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
            raise RefusalError(f"{place(at)} is {_shown(value)}, not a number: give a share between 0 and 1.")
        try:
            numbers[at] = value
        except OverflowError:  # a whole number that no float can hold
            numbers[at] = np.inf
    return numbers


def number(word: str) -> int | float | str:
    """A whole number, else a real one, else the word itself, which is refused where its place is known."""
    if re.fullmatch(r"[+-]?\d{1,20}", word, re.ASCII):
        return int(word)
    try:
        return float(word)
    except ValueError:
        return word


def _size(value: Any, place: str) -> int:
    size = int(whole_numbers([value], lambda _: place)[0])
    if size == 0:
        raise RefusalError(f"{place} is 0: a pattern has at least one query and one key.")
    return size


def _is_sequence(values: Any) -> bool:
    return isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.ndim == 1)


def _listed(values: Any, key: str, what: str) -> Sequence[Any]:
    if not _is_sequence(values):
        raise RefusalError(f"Under '{key}' of {what} stands {_shown(values)}: give a list with one number per entry.")
    return list(values)


def _refuse_odd_numbers(dtype: np.dtype[Any], what: str) -> None:
    if dtype.kind not in "biuf":
        raise RefusalError(f"{what} holds {dtype} values: give real numbers as shares, or a boolean mask.")


def _torch_values(values: Tensor) -> np.ndarray:
    return np.asarray(values.double().numpy() if values.is_floating_point() else values.numpy())


def _is_mask(values: np.ndarray) -> bool:
    return values.dtype.kind == "b" or (values.dtype.kind in "iu" and bool(((values == 0) | (values == 1)).all()))


def _real(values: np.ndarray) -> Float[np.ndarray, " entry"]:
    return values.astype(np.float64)


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
