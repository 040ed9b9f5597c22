"""A model's operator at one input, collapsed to a map: a number for each row of its output and each token it read.

    found = attnscope.operator("pocket", "The dog chased its own tail").map("contribution")
    found.values[i][j], found.errors, found.row(-1), found.top(-1)
    found.save("operator_map.json"); attnscope.load("operator_map.json"); found.chart(); found.write_page("map.html")

`probes` is None if the map is exact. Otherwise `errors` are the standard errors of `values`; intervals are taken on the
logarithm, value * exp(-+2 error / value). A map by contribution adds up: each row and its `constants` sum to its
`totals`, the norm of the output there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError
from attnscope.core.ranges import INFINITE, NAN, Count, Finite, Provenance, Several, Size, adds_up
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

Number = Annotated[Finite, NAN, INFINITE]  # words and charts leave out what overflowed
Error = Annotated[Size, NAN, INFINITE]
Rows = tuple[tuple[Number, ...], ...]


@dataclass(frozen=True, repr=False)
class OperatorMap(Record):
    """A map of an operator: `values[i][j]` is the influence of token j on row i of the output."""

    KIND: ClassVar[str] = "operator_map"
    COMMAND: ClassVar[str] = "operator"
    FILE: ClassVar[str] = "operator_map.json"
    INDENT: ClassVar[int | None] = None

    model: str
    class_name: str
    map: str  # "contribution", "norm", "input" or "output"
    title: str  # what the map shows, in words
    part: str  # which part of the model, in words
    tokens: tuple[str, ...]
    rows: tuple[str, ...]  # of the output: its tokens, or numbers
    values: Rows
    errors: tuple[tuple[Error, ...], ...] | None
    probes: Several | None
    constants: tuple[Number, ...] | None
    totals: tuple[Error, ...] | None
    products: Count  # passes through the frozen model, forward or back
    dtype: str
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)

    @classmethod
    def made_by(cls) -> str:
        return "`attnscope.operator(model, text).map(kind)` in Python"

    @property
    def exact(self) -> bool:
        return self.probes is None

    def row(self, row: int = -1) -> tuple[float, ...]:
        """Return the numbers of one row of the output, all tokens in order."""
        if not -len(self.rows) <= row < len(self.rows):
            raise RefusalError(f"There is no row {row} in this map: they are 0 to {len(self.rows) - 1}.")
        return self.values[row]

    def top(self, row: int = -1, most: int = 10) -> tuple[tuple[int, str, float], ...]:
        """Return (place, word, number) of the largest numbers of one row. Equal numbers are in reading order."""
        numbers = self.row(row)
        order = sorted(range(len(numbers)), key=lambda place: -numbers[place])[:most]
        return tuple((place, self.tokens[place], numbers[place]) for place in order)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OperatorMap:
        """Return the record that `to_json` wrote. A `FieldError` names a wrong field."""
        found = super().from_json(data)
        if not found.tokens or not found.rows:
            raise FieldError("tokens: at least one token and one row are needed")
        for name, table in (("values", found.values), ("errors", found.errors)):
            shape = None if table is None else (len(table), {len(row) for row in table})
            if shape is not None and shape != (len(found.rows), {len(found.tokens)}):
                raise FieldError(f"{name}: a number for every row and token is needed")
        for name, line in (("constants", found.constants), ("totals", found.totals)):
            if line is not None and len(line) != len(found.rows):
                raise FieldError(f"{name}: a number for every row is needed")
        if found.map != "contribution" and any(value < 0 for row in found.values for value in row):
            raise FieldError(f"values: a map by {found.map} has no negative numbers")
        for number, (row, constant, total) in enumerate(
            zip(found.values, found.constants or (), found.totals or (), strict=False)
        ):
            if all(map(math.isfinite, (*row, constant, total))) and not adds_up((*row, constant), total):
                raise FieldError(f"totals[{number}]: the sum of values and constants in this row is needed")
        if (found.errors is None) != found.exact:
            raise FieldError("errors: errors and probes must be given together")
        return found

    def table(self) -> pandas.DataFrame:
        """Return one line for each row of the output and each token."""
        import pandas

        lines = []
        for i, row in enumerate(self.rows):
            for j, token in enumerate(self.tokens):
                line: dict[str, Any] = {"row": i, "of": row, "place": j, "token": token, "value": self.values[i][j]}
                lines.append(line if self.errors is None else {**line, "error": self.errors[i][j]})
        return pandas.DataFrame(lines)

    def __repr__(self) -> str:
        size = f"{len(self.rows)} x {len(self.tokens)}"
        how = "exact" if self.probes is None else f"{self.probes} probes"
        return f"<OperatorMap of {self.model}, {self.part}: {self.map}, {size}, {how}>"
