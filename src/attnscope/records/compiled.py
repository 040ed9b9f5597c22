"""What a compilation gives: a head, its certificate, what is known from below, and everything that was tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.charts.numerals import numeral
from attnscope.compiling.search import Try
from attnscope.heads.bounds import Bounds
from attnscope.heads.certificate import Certificate
from attnscope.heads.head import Head
from attnscope.patterns.pattern import Pattern
from attnscope.reporting.compiled.words import certificate_lines, title_words

_ROWS_AT_ONCE = 2**22  # numbers of a block of rows of the picture


@dataclass(frozen=True, eq=False, repr=False)
class Compiled:
    """`seed` is that of the draw that made this head: the same width and seed make it again."""

    head: Head
    certificate: Certificate
    pattern: Pattern
    method: str
    why: str
    seed: int
    seconds: float
    bounds: Bounds
    tried: tuple[Try, ...] = ()
    universal: bool = False
    forced: bool = False
    interrupted: bool = False
    out_of_time: bool = False

    @property
    def reached(self) -> bool:
        return self.certificate.reached

    @property
    def proved_minimal(self) -> bool:
        """Whether no narrower head can exist: a bound that is a proof says so. All else is `smallest found`."""
        return self.reached and self.certificate.d == self.bounds.best.width

    @property
    def verdict(self) -> str:
        if not self.reached:
            return "accuracy not reached"
        if self.proved_minimal:
            return "proved minimal"
        if self.forced:
            return "width as asked"
        if self.interrupted:
            return "smallest found before the interruption"
        return "smallest found in the time given" if self.out_of_time else "smallest found"

    def to_json(self) -> dict[str, Any]:
        """Flat: what was asked, what was reached, and how."""
        from attnscope import __version__

        certificate = self.certificate.to_json()
        return {
            "method": self.method,
            "n": certificate.pop("n"),
            "k": certificate.pop("k"),
            "d": certificate.pop("d"),
            "dtype": certificate.pop("dtype"),
            "ratio_error": certificate.pop("ratio_error"),
            "leak": certificate.pop("leak"),
            "max_logit": certificate.pop("max_logit"),
            "lower_bound": self.bounds.best.width,
            "proved_minimal": self.proved_minimal,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "reached": certificate.pop("reached"),
            "verdict": self.verdict,
            "why": self.why,
            "pattern": self.pattern.name,
            "n_keys": self.pattern.n_keys,
            "universal": self.universal,
            "interrupted": self.interrupted,
            "out_of_time": self.out_of_time,
            **certificate,
            **self.bounds.to_json(),
            "notes": dict(self.head.notes),
            "tried": [one.to_json() for one in self.tried],
            "attnscope": __version__,
        }

    def save(self, path: Path | str) -> Path:
        """Write the head, its pattern and this as safetensors; a failing head is marked as failing."""
        from attnscope.heads.export import save_head

        return save_head(path, self.head, self.to_json(), self.pattern)

    def chart(self) -> Any:
        """Target, realised pattern and error, side by side."""
        from attnscope.charts.pattern_panels import pattern_panels, pooled

        n, n_keys = self.pattern.n, self.pattern.n_keys
        target, realised, error = (pooled(self._blocks(what), n, n_keys) for what in ("target", "realised", "error"))
        certificate = self.certificate
        return pattern_panels(
            target,
            realised,
            error,
            size=(n, n_keys),
            title=f"{self.pattern.name}: {self.method} at width {certificate.d}",
            subtitle=f"{certificate.dtype}, worst row: ratio error {numeral(certificate.ratio_error)}, "
            f"leak {numeral(certificate.leak)}; {self.verdict}",
        )

    def _blocks(self, what: str) -> Iterator[tuple[int, np.ndarray]]:
        """The pattern, what the head makes of it, or how far apart they are, a few rows at a time."""
        target = self.pattern.sparse()
        step = max(1, _ROWS_AT_ONCE // self.pattern.n_keys)
        for first in range(0, self.pattern.n, step):
            last = min(first + step, self.pattern.n)
            wanted = np.zeros(1) if what == "realised" else target[first:last].toarray()
            given = np.zeros(1) if what == "target" else self.head.attention(first, last).double().numpy()
            yield first, wanted if what == "target" else given if what == "realised" else np.abs(given - wanted)

    def __repr__(self) -> str:
        data = self.to_json()
        return f"<Compiled: {title_words(data)}, {data['verdict']}>"

    def _repr_html_(self) -> str:
        data = self.to_json()
        rows = "".join(
            f"<tr><th>{escape(label)}</th><td>{escape(value)}</td><td>{escape(note)}</td></tr>"
            for label, value, note in certificate_lines(data)
        )
        title = escape(f"{title_words(data)}: {data['verdict']}")
        return f"<div><p>{title}</p><table><tbody>{rows}</tbody></table></div>"
