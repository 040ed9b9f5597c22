"""What a reproduction says, in plain words: the terminal, the page and the notebook print the same ones."""

from __future__ import annotations

import math
from html import escape

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.reproduce.record import Reproduction
from attnscope.core.experiment import Claim, Number, median
from attnscope.core.words import clean, count, numeral
from attnscope.reports.terminal import OUTCOMES, opening
from attnscope.reports.words import Level, Verdict

NAMED_CLAIMS = 3  # in the verdict


def sentences(found: Reproduction) -> tuple[str, ...]:
    """One on all claims together, one on each, and what the experiment remarked."""
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in found.counts.items() if number)
    return (
        f"Of {count(len(found.claims), 'claim')}: {verdicts}.",
        *(_claim(claim) for claim in found.claims),
        *found.remarks,
    )


def _claim(claim: Claim) -> str:
    measured = "; ".join(measured_words(claim)) or "nothing was measured"
    return f"{claim.verdict.capitalize()}: {claim.statement.rstrip('.')} ({claim.expected}: {measured})."


def measured_words(claim: Claim) -> tuple[str, ...]:
    """A line for each quantity of a claim, `sort accuracy 0.98 (0.97 to 0.99 over 5 seeds)`; last why not judged."""
    measured = tuple(_spread(name, values) for name, values in claim.measured.items())
    return (*measured, not_judged(claim)) if claim.missing else measured


def not_judged(claim: Claim) -> str:
    """`not judged, because that needs sink rate of pre norm >= 0.2`; empty where a claim is judged."""
    needs = " and ".join(str(bound).replace("_", " ") for bound in claim.missing)
    return f"not judged, because that needs {needs}" if needs else ""


def _spread(name: str, values: tuple[Number, ...]) -> str:
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    words = f"{name.replace('_', ' ')} {numeral(median(values))}"
    alike = len(set(numbers)) < 2 and len(numbers) == len(values)
    if alike or not numbers:
        return words
    return f"{words} ({numeral(min(numbers))} to {numeral(max(numbers))} over {len(values)} seeds)"


def run_words(found: Reproduction) -> str:
    """`arXiv:2103.03404, preset quick, 2 seeds, 40 s`."""
    return f"arXiv:{found.paper}, preset {found.preset}, {count(len(found.seeds), 'seed')}, {found.seconds:.0f} s"


def verdict(found: Reproduction) -> Verdict:
    """How many claims held, and which did not; a contradiction is the worst that can be said of one."""
    counts, total = found.counts, len(found.claims)
    if total and counts["reproduced"] == total:
        return Verdict("calm", "The claim is reproduced." if total == 1 else f"All {total} claims are reproduced.")
    held = counts["reproduced"]
    first = f"{held or 'None'} of {count(total, 'claim')} {'is' if held < 2 else 'are'} reproduced"
    others = [
        f"{_number(counts[verdict])} {verdict} ({_named(found, verdict)})"
        for verdict in ("contradicted", "not reproduced", "not run")
        if counts[verdict]
    ]
    level: Level = "critical" if counts["contradicted"] else "warning" if counts["not reproduced"] else "note"
    return Verdict(level, f"{first}; {', '.join(others)}." if others else f"{first}.")


def _number(amount: int) -> str:
    return f"{amount} {'is' if amount == 1 else 'are'}"


def _named(found: Reproduction, verdict: str) -> str:
    names = [claim.name.replace("_", " ") for claim in found.claims if claim.verdict == verdict]
    more = len(names) - NAMED_CLAIMS
    return ", ".join(names[:NAMED_CLAIMS]) + (f" and {more} more" if more > 0 else "")


# A reproduction in a terminal: one row for each claim; with `verbose` also what was measured and remarked.


def show(found: Reproduction, *, verbose: bool = False) -> RenderableType:
    """What a console prints."""
    first = opening(verdict(found), f"{found.title}, {run_words(found)}")
    last = [Text(f"\nWhat to do with it: {clean(found.advice)}")] if found.advice else []
    if not verbose:
        return Group(*first, Text(""), _claims(found), *last)
    remarks = (Text(f"· {clean(remark)}") for remark in found.remarks)
    return Group(*first, _numbers(found), *remarks, *last)


def _claims(found: Reproduction) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for claim in found.claims:
        why = f" ({not_judged(claim)})" if claim.missing else ""
        table.add_row(Text(claim.verdict, style=OUTCOMES[claim.verdict]), Text(clean(claim.statement + why)))
    return table


def _numbers(found: Reproduction) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("verdict", "claim", "expected", "measured"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for claim in found.claims:
        table.add_row(
            Text(claim.verdict, style=OUTCOMES[claim.verdict]),
            Text(clean(claim.statement)),
            Text(clean(claim.expected)),
            Text("\n".join(map(clean, measured_words(claim))) or "nothing"),
        )
    return table


# A reproduction in a notebook: the claims as a table. All text is escaped.


def html(found: Reproduction) -> str:
    rows = "".join(
        f"<tr><th>{escape(claim.verdict)}</th><td>{escape(claim.statement)}</td><td>{escape(claim.expected)}</td>"
        f"<td>{'<br>'.join(map(escape, measured_words(claim)))}</td></tr>"
        for claim in found.claims
    )
    said = "".join(f"<p>{escape(remark)}</p>" for remark in found.remarks)
    title = f"<p><b>{escape(found.title)}</b>, preset {escape(found.preset)}</p>"
    return f"{title}<table>{rows}</table>{said}"
