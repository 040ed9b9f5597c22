"""How wide must a head be: what is proved from below, and what each construction was measured to need.

answer.needs                        what each construction needs for the question, n tokens and k keys a row
answer.against_n, answer.against_k  the curves around it; answer.floors are the bounds along them
answer.save("capacity.json"); Capacity.load("capacity.json")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from attnscope import __version__
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.heads.facts import Bound, Bounds
from attnscope.reports.record import BESIDE, Record

if TYPE_CHECKING:
    import pandas

Kind = TypeVar("Kind", bound="Capacity")


@dataclass(frozen=True)
class Need:
    """The width of one construction at one (n, k): the median over seeds, or the reason why it is missing."""

    method: str
    n: int
    k: int
    d: int | None
    widths: tuple[int | None, ...]
    seeds: tuple[int, ...]
    max_logit: float | None
    seconds: float
    note: str = ""

    @property
    def measured(self) -> bool:
        return bool(self.seeds)


@dataclass(frozen=True)
class Floor:
    """Lower bounds of the width at one (n, k): for keys that serve every pattern, and for most patterns."""

    n: int
    k: int
    universal: int
    typical: int


@dataclass(frozen=True, repr=False)
class Capacity(Record):
    """`needs` answers the question; `against_n` and `against_k` are the curves around it.

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
    pattern: str = "union_of_permutations"  # what widths were measured on
    attnscope: str = __version__  # which measured them
    shipped: bool = False  # all widths come from the table inside the package: nothing was searched for

    @property
    def narrowest(self) -> Need | None:
        """Return the construction that needs least."""
        return min((need for need in self.needs if need.d is not None), key=lambda need: need.d or 0, default=None)

    def floor(self, n: int, k: int) -> Floor | None:
        """Return the bounds at a place of the curves."""
        return next((floor for floor in self.floors if (floor.n, floor.k) == (n, k)), None)

    def table(self) -> pandas.DataFrame:
        """Return one row for each construction at each (n, k), the question first."""
        import pandas

        columns = ["method", "n", "k", "d", "seeds", "max_logit", "seconds", "note"]
        needs = dict.fromkeys((*self.needs, *self.against_n, *self.against_k))
        rows = [
            (one.method, one.n, one.k, one.d, len(one.seeds), one.max_logit, one.seconds, one.note) for one in needs
        ]
        return pandas.DataFrame(rows, columns=columns).astype({"d": "Int64", "max_logit": float})

    def to_json(self) -> dict[str, Any]:
        values = {
            **{one.name: encode(getattr(self, one.name)) for one in fields(self)},
            **encode(self.bounds.to_json()),
            "universal_lower_bound": self.bounds["universal"].width,
        }
        document = {one.name: values[one.name] for one in fields(_Flat)}
        return {"format": f"attnscope-{self.KIND}", "version": self.VERSION, **document}

    @classmethod
    def from_json(cls: type[Kind], data: Mapping[str, Any]) -> Kind:
        # The output of `--json` also names files.
        flat = decode(_Flat, {name: data[name] for name in data if name not in BESIDE})
        if {"universal", "typical"} - {bound.name for bound in flat.bounds} or not any(b.proves for b in flat.bounds):
            raise FieldError("bounds: universal and typical are needed, and one that is a proof")
        found = cls(
            bounds=Bounds(flat.bounds, flat.logit_floor),
            **{one.name: getattr(flat, one.name) for one in fields(cls) if one.name != "bounds"},
        )
        again = found.to_json()
        for name in ("universal_lower_bound", "lower_bound", "lower_bound_reason"):
            if getattr(flat, name) != again[name]:
                raise FieldError(f"{name}: {getattr(flat, name)!r} is stored, and {again[name]!r} follows from bounds")
        for need in (*found.needs, *found.against_n, *found.against_k):
            if len(need.widths) != len(need.seeds):
                raise FieldError(f"needs: {need.method} has {len(need.widths)} widths for {len(need.seeds)} seeds")
        return found

    def __repr__(self) -> str:
        best = self.narrowest
        found = "nothing measured" if best is None else f"{best.d} by {best.method}"
        return f"<Capacity of n = {self.n}, k = {self.k} in {self.dtype}: {found}>"


@dataclass(frozen=True)
class _Flat:
    """The fields of the file, in their order. Bounds are beside the answer, not inside it."""

    n: int
    k: int
    dtype: str
    ratio_error: float
    leak: float
    pattern: str
    seeds: tuple[int, ...]
    universal_lower_bound: int
    theorem_width: int
    lower_bound: int
    lower_bound_reason: str
    logit_floor: float
    bounds: tuple[Bound, ...]
    needs: tuple[Need, ...]
    against_n: tuple[Need, ...]
    against_k: tuple[Need, ...]
    floors: tuple[Floor, ...]
    seconds: float
    interrupted: bool
    attnscope: str
    shipped: bool = False  # missing in older files
