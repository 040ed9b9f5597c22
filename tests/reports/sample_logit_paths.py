"""One logit made by hand: two heads upstream, one of which decides; the terms are products of small numbers."""

from __future__ import annotations

from typing import Literal

from attnscope.commands.logit_paths.record import Grid, LogitReport, Removed, SourceRow, Term

Kind = Literal["embedding", "biases", "head", "mlp"]
QUERY, KEY, OTHERS = (2.0, 0.5, 1.0), (0.25, 0.5, 3.0), (0.25, 0.0, -0.5)


def sample_logit_paths() -> LogitReport:
    logits = [[q * k for k in KEY] for q in QUERY]
    leads = [[q * (k - other) for k, other in zip(KEY, OTHERS, strict=True)] for q in QUERY]
    places: tuple[tuple[Kind, int | None, int | None], ...] = (
        ("embedding", None, None),
        ("biases", None, None),
        ("head", 0, 1),
    )
    sources = tuple(
        SourceRow(kind, block, head, *(f(table, n) for table in (logits, leads) for f in (_row, _column)))
        for n, (kind, block, head) in enumerate(places)
    )
    grid = tuple((row[2], row[0], row[1]) for row in (leads[0], leads[2], leads[1]))
    return LogitReport(
        model="a model",
        class_name="LlamaForCausalLM",
        stack="decoder",
        text="a <b> c",
        tokens=("a", " <b>", " c"),
        block=1,
        head=0,
        query=2,
        key=1,
        dtype="float64",
        weights=(0.2, 0.7, 0.1),
        logit=sum(map(sum, logits)) + 0.5,
        lead=sum(map(sum, leads)) + 0.25,
        others=2,
        bias=0.5,
        bias_lead=0.25,
        softcap=50.0,
        sources=sources,
        terms=tuple(Term(a, b, logits[a][b], leads[a][b]) for a, b in ((0, 2), (2, 2))),
        grid=Grid((0, 2), (2, 0), grid),
        removed=(Removed("key", 2, 0.04), Removed("query", 0, 0.65)),
        difference=1e-15,
        notes=("Chosen: token 2 as the query.",),
    )


def _row(table: list[list[float]], number: int) -> float:
    return sum(table[number])


def _column(table: list[list[float]], number: int) -> float:
    return sum(row[number] for row in table)
