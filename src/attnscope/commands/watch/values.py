"""Values: one measure in one stack and site at one look, as an array and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnscope.core.decoding import FieldError

FIGURES = 6
_DEEPEST = 10**5
_NUMBERS = {float, int, type(None)}


@dataclass(frozen=True, eq=False)
class Values:
    """One measure in one stack and site: `numbers` is [blocks] or [blocks, heads], NaN where not finite or missing."""

    measure: str
    part: str
    stack: str
    site: str
    numbers: NDArray[np.float64]

    @classmethod
    def of(cls, measure: str, part: str, stack: str, site: str, numbers: ArrayLike) -> Values:
        """Return `Values` from anything that numpy reads as numbers; None and infinities become NaN."""
        array = np.array(numbers, dtype=np.float64)
        if array.ndim not in (1, 2):
            raise ValueError(f"{measure} must be [blocks] or [blocks, heads], not have {array.ndim} axes")
        return cls(measure, part, stack, site, np.where(np.isfinite(array), array, np.nan))

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.measure, self.part, self.stack, self.site)

    @property
    def layers(self) -> list[float | None] | None:
        """Return numbers [blocks], or None if there is one for each head."""
        return None if self.numbers.ndim == 2 else _plain(self.numbers)

    @property
    def heads(self) -> list[list[float | None]] | None:
        """Return numbers [blocks, heads], or None if there is one for each block."""
        return _plain(self.numbers) if self.numbers.ndim == 2 else None

    def to_json(self) -> dict[str, Any]:
        numbers = {"layers": self.layers} if self.numbers.ndim == 1 else {"heads": self.heads}
        return {"measure": self.measure, "part": self.part, "stack": self.stack, "site": self.site, **numbers}

    @classmethod
    def from_json(cls, data: Any) -> Values:
        if not isinstance(data, Mapping):
            raise FieldError("an object with named fields is needed")
        measure, part, stack, site = (data.get(name) for name in ("measure", "part", "stack", "site"))
        if not all(isinstance(word, str) for word in (measure, part, stack, site)) or len(data) != 5:
            raise FieldError("measure, part, stack, site and either layers or heads are needed")
        flat = "layers" in data
        rows: Any = [data["layers"]] if flat else data.get("heads")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows) or len(rows) > _DEEPEST:
            raise FieldError("lists of numbers are needed")
        if len({len(row) for row in rows}) > 1 or any(set(map(type, row)) - _NUMBERS for row in rows):
            raise FieldError("lists of numbers or null, equally long, are needed")
        try:
            numbers = np.array(rows[0] if flat else rows, dtype=np.float64)
        except (OverflowError, ValueError) as error:
            raise FieldError("numbers that a float can hold are needed") from error
        return cls(measure, part, stack, site, numbers if flat or rows else numbers.reshape(0, 0))  # type: ignore[arg-type]


def _plain(numbers: NDArray[np.float64]) -> list[Any]:
    """Return numbers with six significant digits, None if not finite. Vectorised, because a look has thousands of them.

    Computes round(x / 10^e) 10^e, with e the exponent of the sixth figure. For negative e it divides by 10^-e, which is
    exact in float64 up to 10^22, so the quotient is the float nearest to the decimal and prints with six figures.
    Powers are limited to 10^300: numbers below 1e-295 keep fewer figures, and float32 ends at 1e-45.
    """
    finite = np.isfinite(numbers)
    known = np.where(finite, numbers, 0.0)
    size = np.abs(known)
    power = np.floor(np.log10(np.where(size > 0, size, 1.0))) - (FIGURES - 1)
    up, down = 10.0 ** np.maximum(power, 0), 10.0 ** np.minimum(-np.minimum(power, 0), 300)
    rows: list[Any] = (np.round(known * down / up) * up / down).tolist()
    return rows if finite.all() else _with_null(rows, finite.tolist())


def _with_null(rows: list[Any], finite: list[Any]) -> list[Any]:
    return [
        _with_null(row, known) if isinstance(row, list) else row if known else None
        for row, known in zip(rows, finite, strict=True)
    ]


def short(number: float) -> float:
    return float(f"{number:.{FIGURES}g}")
