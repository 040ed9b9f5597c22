"""A compiled head in words: sentences, and lines of (label, value, note), the same wherever they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.compile.record import Compiled, Try
from attnscope.core.words import clean, count, numeral
from attnscope.heads.facts import Universality
from attnscope.reports.terminal import opening, section
from attnscope.reports.words import Verdict

Line = tuple[str, str, str]
NAMED_ROWS = 8
TOO_LARGE = "TOO LARGE"


def sentences(compiled: Compiled) -> tuple[str, ...]:
    """Whether it was reached and how narrow it is, what the worst row does, and why this construction."""
    certificate, lowest = compiled.certificate, compiled.bounds.best
    subject = f"{compiled.target.name} in {certificate.dtype}"
    if not compiled.reached:
        missed = f"{certificate.failing:,} of {count(certificate.n, 'row')}"
        best = f"The best head of width {certificate.d:,} for {subject}"
        first = f"{best} misses the accuracy in {missed}: {_worst(compiled)}."
    elif compiled.proved_minimal:
        proof = lowest.statement[:1].lower() + lowest.statement[1:]
        which = "no narrower keys serve all patterns" if compiled.universal else "no narrower one can"
        first = f"A head of width {certificate.d:,} realises {subject}, and {which}: {proof}"
    else:
        whose = " for keys that serve all patterns" * compiled.universal
        below = (
            f"widths below {lowest.width:,} are proved impossible{whose}"
            if lowest.width > 1
            else "whether a narrower one exists is not proved either way"
        )
        first = f"A head of width {certificate.d:,} realises {subject} ({compiled.verdict}); {below}."
    worst = (
        f"In the worst row the leak is {number(certificate.leak)} (at most {numeral(certificate.asked_leak)} was asked "
        f"for) and the ratio error {number(certificate.ratio_error)} (at most "
        f"{numeral(certificate.asked_ratio_error)})."
    )
    served = (_served(compiled),) if compiled.proved_universal or compiled.served_of else ()
    return first, *served, worst, f"Construction: {compiled.why}"


def _served(compiled: Compiled) -> str:
    """Universality is a claim about all patterns. What there is to say for it: a proof, or what was tried."""
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
    return ("universal", "not tried", "the keys do not depend on the pattern; which others they serve is not known")


def _worst(compiled: Compiled) -> str:
    """What the worst row has too much of."""
    certificate = compiled.certificate
    asked = (
        ("leak", certificate.leak, certificate.asked_leak),
        ("ratio error", certificate.ratio_error, certificate.asked_ratio_error),
    )
    missed = [
        f"its {name} is {number(worst)} where {numeral(limit)} was asked for"
        for name, worst, limit in asked
        if not worst <= limit  # a number that is not finite misses too
    ]
    return f"in the worst of them {' and '.join(missed)}"


def certificate_lines(compiled: Compiled) -> list[Line]:
    """What a head reaches, against what was asked."""
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
    """Generated patterns have their size in their name; files do not."""
    name = compiled.target.name
    size = "" if "n=" in name else f": {size_words(compiled)}"
    keys = ", universal keys" if compiled.proved_universal else ", keys fixed beforehand" * compiled.universal
    return f"{name}{size}{keys}, {compiled.certificate.dtype}"


def size_words(compiled: Compiled) -> str:
    """`48 × 48, k = 3, causal`."""
    target = compiled.target
    return f"{target.n:,} × {target.n_keys:,}, k = {compiled.certificate.k}{', causal' * target.causal}"


def row_words(rows: Sequence[int], failing: int) -> str:
    named = ", ".join(str(row) for row in rows[:NAMED_ROWS])
    shown = min(len(rows), NAMED_ROWS)
    return named if failing <= shown else f"{named} and {failing - shown:,} more"


BOUND_HEADING = ("bound", "width", "proves", "why", "source")


def bound_lines(compiled: Compiled) -> list[tuple[str, ...]]:
    """The largest first, those that are no proof for this pattern last."""
    ordered = sorted(compiled.bounds.bounds, key=lambda bound: (not bound.proves, -bound.width))
    return [
        (bound.name, f"{bound.width:,}", "yes" if bound.proves else "no", bound.statement, bound.citation)
        for bound in ordered
    ]


TRY_HEADING = ("width", "construction", "seed", "ratio error", "leak", "seconds", "outcome")


def try_lines(compiled: Compiled) -> list[tuple[str, ...]]:
    """Every head that was tried, in order."""
    return [
        (
            f"{one.width:,}",
            one.method or "–",
            str(one.seed),
            number(one.ratio_error),
            number(one.leak),
            f"{one.seconds:.2f}",
            _outcome(one),
        )
        for one in compiled.tried
    ]


def number(value: float) -> str:
    return numeral(value) if math.isfinite(value) else "not finite"


def _outcome(one: Try) -> str:
    return one.refused or ("reached" if one.reached else "missed")


def _asked(worst: float, asked: float, mean: float) -> str:
    words = f"worst row, at most {numeral(asked)} was asked for; mean {number(mean)}"
    return words if worst <= asked else f"{TOO_LARGE}: {words}"


def verdict(compiled: Compiled) -> Verdict:
    """Whether the head does what was asked, and whether a narrower one could."""
    return Verdict("calm" if compiled.reached else "critical", sentences(compiled)[0])


# A compiled head in a terminal: what it does, in sentences; with `verbose` also its certificate.


def show(compiled: Compiled, *, verbose: bool = False) -> RenderableType:
    """What a console prints; a head that misses the accuracy is said to be failing."""
    parts = opening(verdict(compiled), title_words(compiled))
    parts += [Text(""), *(Text(clean(sentence)) for sentence in sentences(compiled)[1:])]
    if not compiled.reached:
        rows = row_words(compiled.certificate.failing_rows, compiled.certificate.failing)
        parts.append(Text(f"The head is marked as failing: it misses the accuracy in rows {rows}."))
    if verbose:
        parts += [section("Certificate"), _certificate(compiled)]
    return Group(*parts)


def _certificate(compiled: Compiled) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    for label, value, note in certificate_lines(compiled):
        table.add_row(label, Text(clean(value)), Text(clean(note), style="red" if note.startswith(TOO_LARGE) else ""))
    return table


# A compiled head in a notebook: the lines of its certificate.


def html(compiled: Compiled) -> str:
    rows = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(value)}</td><td>{escape(note)}</td></tr>"
        for label, value, note in certificate_lines(compiled)
    )
    return f"<p>{escape(title_words(compiled))}</p><table><tbody>{rows}</tbody></table>"
