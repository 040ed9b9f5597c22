"""The record of a compilation: a head, its certificate, lower bounds, and everything that was tried.

    compiled = attnscope.load("head.safetensors")
    compiled.certificate.leak, compiled.bounds.best, compiled.verdict
    compiled.queries, compiled.keys          numpy arrays of the rounded values
    compiled.head, compiled.pattern          the head as torch tensors in its own precision, and the target

Only `head` needs torch. The file is not JSON but safetensors (`heads.head_file`); `to_json` returns its certificate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Float

from attnscope import __version__
from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.errors import RefusalError, refuse_missing_torch
from attnscope.core.files import named_path, read_document
from attnscope.core.ranges import INFINITE, NAN, AtMost, Below, Count, Index, Positive, Several, Share, Size, slack
from attnscope.heads.facts import Bound, Bounds, Certificate, Error, SparsePattern, Universality
from attnscope.heads.head_file import HeadFile, read_head, write_head
from attnscope.reports.record import Record, ask, kind_of

if TYPE_CHECKING:
    import pandas

    from attnscope.heads.head import Head
    from attnscope.heads.pattern import Pattern

Kind = TypeVar("Kind", bound="Compiled")
LeakOrNan = Annotated[Share, NAN, INFINITE]
WIDTH_AS_ASKED = "width as asked"
# Fields that the file stores under their own names, and fields that follow from others and are stored for readers.
_OWN = ("method", "why", "seed", "seconds", "tried", "universal", "forced", "interrupted", "out_of_time", "notes",
        "attnscope", "served", "served_of", "universality")  # fmt: skip
_DERIVED = ("reached", "proved_minimal", "verdict", "lower_bound", "lower_bound_reason")


@dataclass(frozen=True)
class Try:
    """One attempt to build a head, and its errors. `refused` is the reason if the construction refused."""

    width: Several
    seed: int
    ratio_error: Error
    leak: LeakOrNan
    reached: bool
    seconds: Size
    method: str = ""
    refused: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Compiled(Record):
    """A head for a pattern, its certificate and lower bounds. The same width and `seed` build the same head."""

    KIND: ClassVar[str] = "compiled"
    COMMAND: ClassVar[str] = "compile"
    FILE: ClassVar[str] = "head.safetensors"

    queries: Float[np.ndarray, "row width"]
    keys: Float[np.ndarray, "key width"]
    certificate: Certificate
    target: SparsePattern
    method: str
    why: str
    seed: int
    seconds: float
    bounds: Bounds
    tried: tuple[Try, ...] = ()
    universal: bool = False
    forced: bool = False  # the caller chose the width
    interrupted: bool = False
    out_of_time: bool = False
    notes: dict[str, Any] = field(default_factory=dict)  # notes of the construction, as plain JSON
    attnscope: str = __version__  # the version that made it
    served: int | None = None  # how many other patterns of this size universal keys realise ...
    served_of: int | None = None  # ... and how many were tried
    universality: Universality | None = None  # a proof that the keys serve all patterns, if there is one

    @property
    def reached(self) -> bool:
        return self.certificate.reached

    @property
    def proved_minimal(self) -> bool:
        """Whether a proved bound excludes every narrower head.

        For universal keys this also needs a proof that they are universal, which trying patterns does not give.
        """
        sure = not self.universal or self.proved_universal
        return self.reached and sure and self.certificate.d == self.bounds.best.width

    @property
    def proved_universal(self) -> bool:
        """Whether the keys are proved to serve all patterns of this k with weights within the proved spread."""
        return self.universality is not None and self.universality.proved

    @property
    def verdict(self) -> str:
        if not self.reached:
            return "accuracy not reached"
        if self.proved_minimal:
            return "proved minimal"
        if self.forced:
            return WIDTH_AS_ASKED
        if self.interrupted:
            return "smallest found before the interruption"
        return "smallest found in the time given" if self.out_of_time else "smallest found"

    @cached_property
    def head(self) -> Head:
        """The head as torch tensors. Only this property needs torch."""
        with refuse_missing_torch():
            made: Head = import_module("attnscope.commands.compile.export").head_of(self)
        return made

    @cached_property
    def pattern(self) -> Pattern:
        """The target pattern, in the form that `queries_for` and `certify` take."""
        made: Pattern = import_module("attnscope.heads.pattern").Pattern.from_entries(self.target)
        return made

    def table(self) -> pandas.DataFrame:
        """Return one row for each head that was tried."""
        import pandas

        columns = [one.name for one in fields(Try)]
        return pandas.DataFrame([[getattr(one, name) for name in columns] for one in self.tried], columns=columns)

    def chart(self, *args: Any, theme: str | None = "light", **options: Any) -> Any:
        """Draw target, realised pattern and error in a theme."""
        drawn = ask(self, "chart", *args, theme=theme or "light", **options)
        return self._dressed(drawn, theme)

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as a flat dictionary, without tensors."""
        told = {
            **encode(self.certificate),
            **encode(self.bounds.to_json()),
            **{name: encode(getattr(self, name)) for name in _OWN},
            "reached": self.reached,
            "proved_minimal": self.proved_minimal,
            "verdict": self.verdict,
            "pattern": self.target.name,
            "n_keys": self.target.n_keys,
        }
        return {one.name: told[one.name] for one in fields(_Flat)}

    @classmethod
    def from_json(cls: type[Kind], data: Mapping[str, Any]) -> Kind:
        raise RefusalError("The certificate does not contain the head: load the .safetensors file, which has both.")

    def save(self, path: Path | str) -> Path:
        """Write the head, its pattern and its certificate as safetensors."""
        target, certificate = self.target, self.certificate
        return write_head(
            path,
            HeadFile(
                queries=self.queries,
                keys=self.keys,
                dtype=certificate.dtype,
                causal=certificate.causal,
                method=self.method,
                notes=self.notes,
                certificate=self.to_json(),
                pattern=(target.rows, target.columns, target.weights),
            ),
        )

    @classmethod
    def load(cls: type[Kind], path: Path | str) -> Kind:
        """Read a file that `save` wrote. Refuse a file that contradicts itself, and name the field."""
        file = cls.file_in(named_path(path, "file"))
        if file.suffix.lower() != ".safetensors":
            data = read_document(file, "the .safetensors file of a compiled head")
            raise RefusalError(
                f"{file} is of kind {kind_of(data) or 'unknown'}, not {cls.KIND}: give the {cls.KIND} file"
                f" that {cls.made_by()} wrote."
            )
        stored = read_head(file)
        try:
            return cls._of(stored)
        except FieldError as error:
            raise RefusalError(f"{file} is damaged ({error}): run `attnscope {cls.COMMAND}` again.") from error

    @classmethod
    def _of(cls: type[Kind], stored: HeadFile) -> Kind:
        flat = decode(_Flat, stored.certificate)
        if stored.pattern is None:
            raise FieldError("pattern_rows: missing")
        if not any(bound.proves for bound in flat.bounds):
            raise FieldError("bounds: none of them is a proof")
        target = SparsePattern(flat.pattern, len(stored.queries), len(stored.keys), stored.causal, *stored.pattern)
        target.check()
        compiled = cls(
            queries=stored.queries,
            keys=stored.keys,
            certificate=Certificate(**{item.name: getattr(flat, item.name) for item in fields(Certificate)}),
            target=target,
            bounds=Bounds(flat.bounds, flat.logit_floor),
            **{name: getattr(flat, name) for name in _OWN if name != "forced"},
            forced=flat.verdict == WIDTH_AS_ASKED if flat.forced is None else flat.forced,
        )
        _agree(compiled, flat, stored)
        return compiled

    def __repr__(self) -> str:
        title: str = import_module("attnscope.commands.compile.words").title_words(self)
        return f"<Compiled: {title}, {self.verdict}>"


@dataclass(frozen=True)
class _Flat:
    """The fields of the certificate in a file, in their order."""

    method: str
    n: Several
    k: Several
    d: Several
    dtype: str
    ratio_error: Error
    leak: LeakOrNan
    max_logit: Error
    lower_bound: Several
    proved_minimal: bool
    seconds: Size
    seed: int
    reached: bool
    verdict: str
    why: str
    pattern: str
    n_keys: Several
    universal: bool
    interrupted: bool
    out_of_time: bool
    causal: bool
    mean_ratio_error: Error
    mean_leak: LeakOrNan
    zero_ratio: Error
    query_norm: Error
    key_norm: Error
    asked_ratio_error: Positive
    asked_leak: Share
    failing: Annotated[Count, AtMost("n")]
    failing_rows: Annotated[tuple[Index, ...], Below("n")]
    lower_bound_reason: str
    logit_floor: Size
    bounds: tuple[Bound, ...]
    notes: dict[str, Any]
    tried: tuple[Try, ...]
    attnscope: str
    forced: bool | None = None  # missing in older files, where the verdict tells it
    served: Annotated[Count | None, AtMost("served_of")] = None
    served_of: Count | None = None
    universality: Universality | None = None
    rounding: Error | None = None  # missing in older files


def _agree(compiled: Compiled, flat: _Flat, stored: HeadFile) -> None:
    """Raise `FieldError` if the certificate contradicts the tensors or its own numbers."""
    follows: dict[str, Any] = {
        "n": len(stored.queries),
        "n_keys": len(stored.keys),
        "d": stored.queries.shape[1],
        "k": compiled.target.k,
        "dtype": stored.dtype,
        "causal": stored.causal,
        "method": stored.method,
        "notes": stored.notes,
        **{name: value for name, value in compiled.to_json().items() if name in _DERIVED},
    }
    for name, right in follows.items():
        if getattr(flat, name) != right:
            raise FieldError(f"{name}: {getattr(flat, name)!r} is stored, and {right!r} follows from the rest")
    for name in ("ratio_error", "leak"):
        if compiled.reached and not getattr(flat, name) <= getattr(flat, f"asked_{name}"):
            raise FieldError(f"{name}: {getattr(flat, name):g} exceeds its limit, and no row is failing")
    if flat.universality is not None:
        proof = flat.universality
        about = (proof.n, proof.d, proof.dtype, proof.asked_ratio_error, proof.asked_leak)
        if about != (flat.n_keys, flat.d, flat.dtype, flat.asked_ratio_error, flat.asked_leak) or proof.k < flat.k:
            raise FieldError("universality: it belongs to other keys")
        if not (flat.universal and proof.proved):
            raise FieldError("universality: its numbers do not prove it")
    _agree_on_sizes(compiled.certificate, stored)
    for number, one in enumerate(flat.tried):
        # Older files have null for infinite numbers, which is read as NaN and exceeds nothing.
        if one.reached and (one.ratio_error > flat.asked_ratio_error or one.leak > flat.asked_leak):
            raise FieldError(f"tried[{number}]: its ratio_error or leak exceeds its limit, and it is said to reach it")
    met = flat.ratio_error <= flat.asked_ratio_error and flat.leak <= flat.asked_leak
    if met != compiled.reached:
        raise FieldError(f"failing: {flat.failing} is stored, and the worst row is accurate enough")


def _agree_on_sizes(told: Certificate, stored: HeadFile) -> None:
    """Raise `FieldError` for a norm that the tensors do not have, or a size that contradicts another.

    Files write infinity as null, which is read as NaN. A logit is (query . key) / sqrt(d) before rounding, so it is at
    most the product of both norms over sqrt(d), apart from rounding.
    """
    for name, rows in (("query_norm", stored.queries), ("key_norm", stored.keys)):
        right = float(np.nan_to_num(np.linalg.norm(rows.astype(np.float64), axis=1), nan=np.inf).max())
        stated = getattr(told, name)
        if not (math.isclose(stated, right, rel_tol=1e-9) or (math.isnan(stated) and not math.isfinite(right))):
            raise FieldError(f"{name}: {stated:g} is stored, and {right:g} follows from the tensors")
    most = told.query_norm * told.key_norm / math.sqrt(told.d)
    if math.isfinite(most) and not told.max_logit <= most + slack(most):
        raise FieldError(f"max_logit: {told.max_logit:g} is stored, and the norms allow {most:g}")
    if told.reached and not math.isfinite(told.zero_ratio):
        raise FieldError("zero_ratio: a finite number is needed where every row is accurate enough")
    for name in ("ratio_error", "leak"):
        worst, mean = getattr(told, name), getattr(told, f"mean_{name}")
        if math.isfinite(worst) and not mean <= worst + slack(worst):
            raise FieldError(f"mean_{name}: {mean:g} is stored, and the worst row has {worst:g}")
