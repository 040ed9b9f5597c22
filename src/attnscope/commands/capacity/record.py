"""The record of `capacity`: how wide a head must be, by proved lower bounds and by measured constructions.

answer.needs                        the width of each construction for n tokens and k keys in a row
answer.against_n, answer.against_k  widths for other n and other k; answer.floors are the bounds there
answer.save("capacity.json"); Capacity.load("capacity.json")
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from attnscope import __version__
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.ranges import AsMany, Positive, Several, Share, Size
from attnscope.heads.facts import Bound, Bounds
from attnscope.reports.record import BESIDE, Record

if TYPE_CHECKING:
    import pandas

Kind = TypeVar("Kind", bound="Capacity")


def median_width(widths: Sequence[int | None]) -> int | None:
    """Return the upper median over seeds; None, no width found, counts as the largest."""
    ordered = sorted(math.inf if width is None else width for width in widths)
    middle = ordered[len(ordered) // 2] if ordered else math.inf
    return None if middle == math.inf else int(middle)


@dataclass(frozen=True)
class Need:
    """The width of one construction at one (n, k): the median over seeds, or None and a note that says why."""

    method: str
    n: Several
    k: Several
    d: Several | None
    widths: tuple[Several | None, ...]
    seeds: Annotated[tuple[int, ...], AsMany("widths")]
    max_logit: Size | None
    seconds: Size
    note: str = ""

    @property
    def measured(self) -> bool:
        return bool(self.seeds)


@dataclass(frozen=True)
class Floor:
    """Lower bounds on the width at one (n, k): for keys that serve every pattern, and for most patterns."""

    n: Several
    k: Several
    universal: Several
    typical: Several


@dataclass(frozen=True, repr=False)
class Capacity(Record):
    """Widths of constructions at (n, k), and curves along n and k.

    `bounds` are for keys that serve every pattern; one pattern alone may need less.
    """

    KIND: ClassVar[str] = "capacity"
    COMMAND: ClassVar[str] = "capacity"
    FILE: ClassVar[str] = "capacity.json"

    n: int
    k: int
    dtype: str
    ratio_error: float
    leak: float
    seeds: tuple[int, ...]
    bounds: Bounds
    theorem_width: int
    needs: tuple[Need, ...]
    against_n: tuple[Need, ...]
    against_k: tuple[Need, ...]
    seconds: float
    interrupted: bool = False
    floors: tuple[Floor, ...] = ()
    pattern: str = "union_of_permutations"  # the kind of pattern that was measured
    attnscope: str = __version__  # the version that measured it
    shipped: bool = False  # all widths come from the table of the package

    @property
    def narrowest(self) -> Need | None:
        """Return the construction with the smallest width."""
        return min((need for need in self.needs if need.d is not None), key=lambda need: need.d or 0, default=None)

    def floor(self, n: int, k: int) -> Floor | None:
        """Return the bounds at a point of the curves."""
        return next((floor for floor in self.floors if (floor.n, floor.k) == (n, k)), None)

    def table(self) -> pandas.DataFrame:
        """Return one row for each construction at each (n, k); the requested (n, k) comes first."""
        import pandas

        columns = ["method", "n", "k", "d", "seeds", "max_logit", "seconds", "note"]
        needs = dict.fromkeys((*self.needs, *self.against_n, *self.against_k))
        rows = [
            (need.method, need.n, need.k, need.d, len(need.seeds), need.max_logit, need.seconds, need.note)
            for need in needs
        ]
        return pandas.DataFrame(rows, columns=columns).astype({"d": "Int64", "max_logit": float})

    def to_json(self) -> dict[str, Any]:
        values = {
            **{item.name: encode(getattr(self, item.name)) for item in fields(self)},
            **encode(self.bounds.to_json()),
            "universal_lower_bound": self.bounds["universal"].width,
        }
        document = {item.name: values[item.name] for item in fields(_Flat)}
        return {"format": f"attnscope-{self.KIND}", "version": self.VERSION, **document}

    @classmethod
    def from_json(cls: type[Kind], data: Mapping[str, Any]) -> Kind:
        # The output of `--json` also has fields that name files; ignore them.
        flat = decode(_Flat, {name: data[name] for name in data if name not in BESIDE})
        if {"universal", "typical"} - {bound.name for bound in flat.bounds} or not any(b.proves for b in flat.bounds):
            raise FieldError("bounds: universal and typical are needed, and at least one proof")
        record = cls(
            bounds=Bounds(flat.bounds, flat.logit_floor),
            **{item.name: getattr(flat, item.name) for item in fields(cls) if item.name != "bounds"},
        )
        again = record.to_json()
        for name in ("universal_lower_bound", "lower_bound", "lower_bound_reason"):
            if getattr(flat, name) != again[name]:
                raise FieldError(f"{name}: {getattr(flat, name)!r} is stored, and {again[name]!r} follows from bounds")
        for need in (*record.needs, *record.against_n, *record.against_k):
            if need.d != median_width(need.widths) or (need.max_logit is None) != (set(need.widths) <= {None}):
                raise FieldError(f"needs: {need.method} has no d and max_logit that its widths give")
        return record

    def __repr__(self) -> str:
        best = self.narrowest
        found = "nothing measured" if best is None else f"{best.d} by {best.method}"
        return f"<Capacity of n = {self.n}, k = {self.k} in {self.dtype}: {found}>"


@dataclass(frozen=True)
class _Flat:
    """The fields of the file, in their order. The fields of `Bounds` are stored at the top level."""

    n: Several
    k: Several
    dtype: str
    ratio_error: Positive
    leak: Share
    pattern: str
    seeds: tuple[int, ...]
    universal_lower_bound: Several
    theorem_width: Several
    lower_bound: Several
    lower_bound_reason: str
    logit_floor: Size
    bounds: tuple[Bound, ...]
    needs: tuple[Need, ...]
    against_n: tuple[Need, ...]
    against_k: tuple[Need, ...]
    floors: tuple[Floor, ...]
    seconds: Size
    interrupted: bool
    attnscope: str
    shipped: bool = False  # missing in older files
