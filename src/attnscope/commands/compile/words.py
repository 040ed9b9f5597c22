"""The sentences, tables and document of a compiled head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from attnscope.commands.compile.record import Compiled
from attnscope.core.words import count, numeral
from attnscope.heads.facts import Universality
from attnscope.reports.document import Document, Figure, Section, Table, rows
from attnscope.reports.words import Verdict

Line = tuple[str, str, str]
NAMED_ROWS = 8
LARGEST_SIDE = 256  # cells along a side of a map


BACKGROUND = (
    "A pattern says which keys each query should attend to. A head realises it if the softmax of its logits is close "
    "to it, by two numbers of the worst row. The ratio error is that of proportions inside a row: 0.1 keeps them "
    "within a factor 1.1. The leak is the share of a row's attention on zeros of the pattern. Any sparse pattern has a "
    "narrow head (arXiv:2106.03764)."
)
CERTIFICATE = (
    "The errors of the head and their limits. They are computed from the rounded tensors of the head alone. Anyone can "
    "check them with the file, which has the tensors and the pattern: attention is the softmax of "
    "`(X @ W_Q) @ (X @ W_K).T / sqrt(width)`, and ten lines of numpy give both numbers."
)


def document(compiled: Compiled) -> Document:
    certificate = compiled.certificate
    kind = f"{certificate.dtype}{_keys(compiled)}"
    floor = number(compiled.bounds.logit_floor)
    tried = Table(
        ("width", "construction", "seed", "ratio error", "leak", "seconds", "outcome"),
        _try_rows(compiled),
        align="rlrrrrl",
    )
    return Document(
        verdict(compiled),
        f"A head for {compiled.target.name}",
        about=(f"{size_words(compiled)} · width {certificate.d:,} in {kind} · {compiled.verdict}",),
        sections=(
            Section("What it means", background=(BACKGROUND,), sentences=_sentences(compiled)),
            Section("Pattern and head", figures=(_picture(compiled),)),
            Section(
                "Certificate",
                background=(CERTIFICATE,),
                tables=(Table((), tuple(certificate_lines(compiled)), align="lrl", brief=0),),
            ),
            Section(
                "Lower bounds of the width",
                background=(
                    "A bound with `yes` holds for every head of this accuracy for this pattern. The longest query "
                    f"times the longest key is at least {floor} at any width (norms, in units of logits).",
                ),
                tables=(Table(("bound", "width", "proves", "why", "source"), _bound_rows(compiled), align="lrlll"),),
                link="Bounds",
                detail=True,
            ),
            *(
                [Section("Tried", ("Every head that was built, in order.",), tables=(tried,), detail=True)]
                if compiled.tried
                else []
            ),
        ),
        provenance=rows(
            {
                "pattern": compiled.target.name,
                "construction": compiled.method,
                "seed": compiled.seed,
                "seconds": compiled.seconds,
                "notes": compiled.notes,
                "attnscope": compiled.attnscope,
            }
        ),
    )


def _picture(compiled: Compiled) -> Figure:
    size = (compiled.target.n, compiled.target.n_keys)

    @cache
    def maps() -> Any:
        from attnscope.commands.compile.chart import maps

        return maps(compiled)

    def draw(width: int, theme: str) -> Any:
        from attnscope.commands.compile.chart import pattern_panels

        return pattern_panels(*maps(), size=size, title="", theme=theme, width=width)

    cell = pooling_words(size)
    pooled = f" {cell[0].upper()}{cell[1:]}." if cell else ""
    return Figure(
        "pattern",
        "Target, realised pattern, and their difference",
        draw,
        caption="Rows are queries, columns are keys. The error has a logarithmic colour, so that an error of 0.001 is "
        f"visible beside one of 0.5.{pooled}",
        themed=True,
    )


def pooling_words(size: tuple[int, int], side: int = LARGEST_SIDE) -> str:
    """Return how many entries a cell of a map stands for, or "" if it is one entry."""
    if max(size) <= side:
        return ""
    down, across = (-(-entries // min(entries, side)) for entries in size)
    return f"a cell is the largest of {down} × {across} entries"


def verdict(compiled: Compiled) -> Verdict:
    """Say whether the head reaches the accuracy, and whether a narrower one could."""
    certificate, lowest = compiled.certificate, compiled.bounds.best
    subject = f"{compiled.target.name} in {certificate.dtype}"
    if not compiled.reached:
        missed = f"{certificate.failing:,} of {count(certificate.n, 'row')}"
        best = f"The best head of width {certificate.d:,} for {subject}"
        return Verdict("critical", f"{best} misses the accuracy in {missed}: {_worst(compiled)}.")
    if compiled.proved_minimal:
        proof = lowest.statement[:1].lower() + lowest.statement[1:]
        which = "no narrower keys serve all patterns" if compiled.universal else "no narrower one can"
        return Verdict("calm", f"A head of width {certificate.d:,} realises {subject}, and {which}: {proof}")
    whose = " for keys that serve all patterns" * compiled.universal
    below = (
        f"widths below {lowest.width:,} are proved impossible{whose}"
        if lowest.width > 1
        else "whether a narrower one exists is not proved either way"
    )
    return Verdict("calm", f"A head of width {certificate.d:,} realises {subject} ({compiled.verdict}); {below}.")


def _sentences(compiled: Compiled) -> tuple[str, ...]:
    """Return sentences on universal keys, the errors of the worst row, the construction, and failing rows."""
    certificate = compiled.certificate
    worst = (
        f"In the worst row the leak is {number(certificate.leak)} (at most {numeral(certificate.asked_leak)} is "
        f"allowed) and the ratio error {number(certificate.ratio_error)} (at most "
        f"{numeral(certificate.asked_ratio_error)})."
    )
    served = (_served(compiled),) if compiled.proved_universal or compiled.served_of else ()
    failed = row_words(certificate.failing_rows, certificate.failing)
    failing = f"The head is marked as failing: it misses the accuracy in rows {failed}."
    return *served, worst, f"Construction: {compiled.why}", *(() if compiled.reached else (failing,))


def _served(compiled: Compiled) -> str:
    """Say which patterns the keys serve: all if there is a proof, else how many of those tried."""
    if compiled.universality is not None and compiled.universality.proved:
        return f"Its keys are universal, which is proved: {_proof(compiled.universality)}."
    others = f"{compiled.served:,} of {count(compiled.served_of or 0, 'other pattern')}"
    sure = "" if compiled.served == compiled.served_of else " Wider keys serve more."
    return f"Its keys do not depend on the pattern, and served {others} of this size that were tried.{sure}"


def _proof(proved: Universality) -> str:
    weights = "equal weights" if proved.spread == 1 else f"weights within a factor {numeral(proved.spread)}"
    return (
        f"every row of up to {proved.k:,} of {count(proved.n, 'key')} with {weights} has a query on them with a leak "
        f"of {number(proved.leak)} and a ratio error of {number(proved.ratio_error)} at most"
    )


def _universal_line(compiled: Compiled) -> Line:
    if compiled.universality is not None and compiled.universality.proved:
        return ("universal", "proved", _proof(compiled.universality))
    if compiled.served_of:
        tried = f"{compiled.served:,} of {compiled.served_of:,} tried"
        return ("universal", tried, "other patterns that the same keys served; whether they serve all is not proved")
    return (
        "universal",
        "not tried",
        "the keys do not depend on the pattern; which other patterns they serve is unknown",
    )


def _worst(compiled: Compiled) -> str:
    """Name the limits that the worst row exceeds."""
    certificate = compiled.certificate
    asked = (
        ("leak", certificate.leak, certificate.asked_leak),
        ("ratio error", certificate.ratio_error, certificate.asked_ratio_error),
    )
    missed = [
        f"its {name} is {number(worst)}, above the limit of {numeral(limit)}"
        for name, worst, limit in asked
        if not worst <= limit  # NaN and infinity miss too
    ]
    return f"in the worst of them {' and '.join(missed)}"


def certificate_lines(compiled: Compiled) -> list[Line]:
    """Return the lines of the certificate: name, number, and what it means."""
    certificate, lowest = compiled.certificate, compiled.bounds.best
    lines = [
        ("width", f"{certificate.d:,}", compiled.verdict),
        ("lower bound", f"{lowest.width:,}", lowest.statement),
        (
            "ratio error",
            number(certificate.ratio_error),
            _asked(certificate.ratio_error, certificate.asked_ratio_error, certificate.mean_ratio_error),
        ),
        ("leak", number(certificate.leak), _asked(certificate.leak, certificate.asked_leak, certificate.mean_leak)),
        ("zero / non-zero", number(certificate.zero_ratio), "the largest in a row"),
        (
            "largest logit",
            number(certificate.max_logit),
            f"largest norms: query {number(certificate.query_norm)}, key {number(certificate.key_norm)}",
        ),
        ("method", compiled.method, compiled.why.removeprefix(f"{compiled.method}, ")),
        ("seed", str(compiled.seed), f"{count(len(compiled.tried), 'head')} tried in {numeral(compiled.seconds)} s"),
    ]
    if compiled.universal:
        lines.insert(2, _universal_line(compiled))
    if certificate.failing:
        rows = row_words(certificate.failing_rows, certificate.failing)
        lines.insert(4, ("failing rows", f"{certificate.failing:,}", rows))
    return lines


def title_words(compiled: Compiled) -> str:
    """Return the name, size and dtype. Names of generated patterns contain their size; for others it is added."""
    name = compiled.target.name
    size = "" if "n=" in name else f": {size_words(compiled)}"
    return f"{name}{size}{_keys(compiled)}, {compiled.certificate.dtype}"


def _keys(compiled: Compiled) -> str:
    return ", universal keys" if compiled.proved_universal else ", keys fixed beforehand" * compiled.universal


def size_words(compiled: Compiled) -> str:
    """Return `48 × 48, k = 3, causal`."""
    target = compiled.target
    return f"{target.n:,} × {target.n_keys:,}, k = {compiled.certificate.k}{', causal' * target.causal}"


def row_words(rows: Sequence[int], failing: int) -> str:
    named = ", ".join(str(row) for row in rows[:NAMED_ROWS])
    shown = min(len(rows), NAMED_ROWS)
    return named if failing <= shown else f"{named} and {failing - shown:,} more"


def _bound_rows(compiled: Compiled) -> tuple[tuple[str, ...], ...]:
    """Return the bounds, largest first; those that are not proved for this pattern come last."""
    ordered = sorted(compiled.bounds.bounds, key=lambda bound: (not bound.proves, -bound.width))
    return tuple(
        (bound.name, f"{bound.width:,}", "yes" if bound.proves else "no", bound.statement, bound.citation)
        for bound in ordered
    )


def _try_rows(compiled: Compiled) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            f"{one.width:,}",
            one.method or "–",
            str(one.seed),
            number(one.ratio_error),
            number(one.leak),
            f"{one.seconds:.2f}",
            one.refused or ("reached" if one.reached else "missed"),
        )
        for one in compiled.tried
    )


def number(value: float) -> str:
    return numeral(value) if math.isfinite(value) else "not finite"


def _asked(worst: float, asked: float, mean: float) -> str:
    words = f"worst row, at most {numeral(asked)} is allowed; mean {number(mean)}"
    return words if worst <= asked else f"TOO LARGE: {words}"
