"""Matrix Market text (.mtx): a banner, comments, a line of sizes, and one entry a line, counted from 1.

Read here and not by scipy.io.mmread, because that one brings the whole process down on some damaged files (no rows, a
last line that ends in a foreign byte) and takes a symmetric matrix that is not square for a good one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Int

from attnscope.core.errors import RefusalError
from attnscope.heads.entries import Entries, number, real_numbers, whole_numbers

FORMS = ("coordinate", "array")
FIELDS = ("real", "double", "integer", "pattern")
SYMMETRIES = ("general", "symmetric")


def from_matrix_market(text: str, path: Path) -> Entries:
    """The entries of the file at `path`, whose content is `text`."""
    lines = text.split("\n")
    form, field, symmetry = _banner(lines[0], path)
    body = [
        (place, line.split())
        for place, line in enumerate(lines[1:], start=2)
        if line.strip() and not line.lstrip().startswith("%")
    ]
    sizes, entries = _sizes(body, form, path), body[1:]
    n, n_keys = sizes[:2]
    if symmetry == "symmetric" and n != n_keys:
        raise RefusalError(f"{path} calls a matrix of {n} x {n_keys} symmetric: make it square, or call it general.")
    promised = sizes[2] if form == "coordinate" else n * (n + 1) // 2 if symmetry == "symmetric" else n * n_keys
    if len(entries) != promised:
        raise RefusalError(f"{path} promises {promised} entries and holds {len(entries)}: write it again.")
    words = (2 if form == "coordinate" else 0) + (field != "pattern")
    for place, entry in entries:
        if len(entry) != words:
            raise RefusalError(f"Line {place} of {path} has {len(entry)} words where {words} belong: write it again.")

    def part(which: int) -> list[int | float | str]:
        return [number(entry[which]) for _, entry in entries]

    def named(what: str) -> Callable[[int], str]:
        return lambda at: f"The {what} of line {entries[at][0]} of {path}"

    if form == "coordinate":
        rows, columns = whole_numbers(part(0), named("row")) - 1, whole_numbers(part(1), named("column")) - 1
        _refuse_outside(rows, columns, n, n_keys, lambda at: f"Line {entries[at][0]} of {path}")
    elif symmetry == "symmetric":  # the lower triangle, column by column
        columns, rows = np.triu_indices(n)
    else:
        columns, rows = np.divmod(np.arange(n * n_keys), n)
    weights = np.ones(len(entries)) if field == "pattern" else real_numbers(part(-1), named("weight"))
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
    place, words = body[0]
    sizes = whole_numbers([number(word) for word in words[:2]], lambda at: f"Size {at} in line {place} of {path}")
    if not sizes.all():
        raise RefusalError(f"Line {place} of {path} gives a size of 0: a pattern has at least one query and one key.")
    promised = [number(word) for word in words[2:]]
    if not all(isinstance(count, int) for count in promised):
        raise RefusalError(f"Line {place} of {path} says '{words[2]}' where the number of entries belongs: correct it.")
    return [*sizes.tolist(), *(int(count) for count in promised)]


def _refuse_outside(
    rows: Int[np.ndarray, " entry"],
    columns: Int[np.ndarray, " entry"],
    n: int,
    n_keys: int,
    place: Callable[[int], str],
) -> None:
    outside = (rows < 0) | (rows >= n) | (columns < 0) | (columns >= n_keys)
    if outside.any():
        at = int(np.argmax(outside))
        raise RefusalError(
            f"{place(at)} names entry ({rows[at] + 1}, {columns[at] + 1}), outside {n} x {n_keys} when counted from 1: "
            "correct it."
        )
