"""The sentences and the document of one attention logit: what decides where a head looks."""

from __future__ import annotations

from attnscope.commands.logit_paths.record import LogitReport, Removed, Side, SourceRow
from attnscope.commands.paths.vocabulary import chance, head_name, quoted, signed
from attnscope.core.words import count, numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict

DECIDES = 0.5  # a source is named as the reason if its removal takes away, or adds, half of the weight
CHARTS = "attnscope.commands.logit_paths.chart"
SIDES: tuple[Side, Side] = ("query", "key")
BRIEF = 5  # rows of a table in a terminal without --verbose


def document(report: LogitReport) -> Document:
    grid = Figure(
        "terms",
        "Sources of the query by sources of the key",
        drawn_by(f"{CHARTS}:term_grid", report),
        caption=f"What each pair adds to the lead of {numeral(report.lead)}; orange adds, blue subtracts. The last row "
        "and column sum all other sources.",
        summary="A table of the largest sources of both sides, by colour.",
    )
    background = (
        "A logit alone says little, because softmax ignores what is added to all logits of a row. So sources are "
        "ranked by what they add to the lead: the logit minus the mean logit of the other keys that the query sees. "
        "Denominators of norms are fixed, and the terms add up exactly.",
        "Removed means: the source is taken out of the stream from which the query, or the key, of this head is "
        "computed, at that one token. Norms and the attention row are then computed anew. Everything else stays.",
    )
    return Document(
        verdict(report),
        f"Why {head_name(report.block, report.head)} looks at {quoted(report.tokens[report.key])}",
        about=(f"{report.model} · {report.class_name} · {report.dtype} · {count(len(report.tokens), 'token')}",),
        sections=(
            Section("Findings", sentences=_sentences(report), notes=report.notes),
            Section("Terms", background=background[:1], figures=(grid,), tables=(_term_table(report),)),
            Section("Removed sources", background=background[1:], tables=(_removed_table(report),)),
            Section(
                "Sources", tables=(_side_table(report, "query"), _side_table(report, "key")), beside=True, link="Sides"
            ),
        ),
        provenance=rows(report.provenance),
        command="paths",
    )


def verdict(report: LogitReport) -> Verdict:
    """Say how much the head looks there, and name the source whose removal changes this most."""
    query, key = (token_words(report, token) for token in (report.query, report.key))
    looks = f"{_capital(head_name(report.block, report.head))} looks from {query} to {key} with {chance(report.weight)}"
    if report.others == 0:
        return Verdict("note", f"{looks}: the query sees no other key.")
    if report.block == 0:
        return Verdict("note", f"{looks}; before block 0 there are only embeddings and biases.")
    if not report.removed:
        return Verdict("note", f"{looks}; no source was removed.")
    most = max(report.removed, key=lambda one: abs(one.weight - report.weight))
    change = f"without {written(report, most)}, this {moved(report.weight, most.weight)}"
    if abs(most.weight - report.weight) >= DECIDES * report.weight:
        return Verdict("note", f"{looks}; {change}.")
    return Verdict(
        "note", f"{looks}, and no single source decides it: {change}, the largest of {len(report.removed)} removals."
    )


def _sentences(report: LogitReport) -> tuple[str, ...]:
    return (*_against_others(report), *_largest(report), *_fixed(report), _exact(report))


def _against_others(report: LogitReport) -> list[str]:
    if report.others == 0:
        return ["The query sees only this key, so its weight is 100% whatever the logit is."]
    ahead = "leads by" if report.lead >= 0 else "trails by"
    said = (
        f"Its logit is {numeral(report.logit)}, and the {count(report.others, 'other key')} that the query sees "
        f"{'has' if report.others == 1 else 'have'} {numeral(report.logit - report.lead)}"
        f"{'' if report.others == 1 else ' on average'}: it {ahead} {numeral(abs(report.lead))}."
    )
    rival = max((token for token in range(len(report.tokens)) if token != report.key), key=lambda t: report.weights[t])
    more = "larger" if report.weights[rival] > report.weight else "next largest"
    return [said, f"The {more} weight is that of {token_words(report, rival)}, {chance(report.weights[rival])}."]


def _largest(report: LogitReport) -> list[str]:
    """Name the largest term and the largest source of each side."""
    if not report.terms or report.others == 0:
        return []
    term = report.terms[0]
    said = (
        f"The largest term is {source_words(report.sources[term.query])} at the query with "
        f"{source_words(report.sources[term.key])} at the key: {signed(term.lead)} of the lead."
    )
    sides = []
    for side in SIDES:
        best = max(report.sources, key=lambda one: abs(_lead(one, side)))
        sides.append(f"{source_words(best)} ({signed(_lead(best, side))}) at the {side}")
    return [said, f"Summed over the other side, most comes from {' and '.join(sides)}."]


def _fixed(report: LogitReport) -> list[str]:
    said = []
    if report.bias or report.bias_lead:
        said.append(
            f"The model adds a bias for the distance of the two tokens: {signed(report.bias_lead)} of the lead comes "
            "from it and from no source."
        )
    if report.softcap is not None:
        said.append(
            f"The model caps its logits at {numeral(report.softcap)}: the logit is decomposed before the cap, and "
            "weights are computed with it."
        )
    return said


def _exact(report: LogitReport) -> str:
    return f"The terms add up to the model's own logit within {numeral(report.difference, 2)} ({report.dtype})."


def moved(before: float, after: float) -> str:
    """Return `falls to 4%`, `rises to 80%` or `stays at 71%`."""
    if chance(before) == chance(after):
        return f"stays at {chance(after)}"
    return f"{'falls' if after < before else 'rises'} to {chance(after)}"


def token_words(report: LogitReport, token: int) -> str:
    return f"{quoted(report.tokens[token])} (token {token})"


def source_words(source: SourceRow) -> str:
    """Return `block 0 head 3`, `the MLP of block 0`, `the embedding` or `biases`."""
    if source.kind == "head" and source.block is not None and source.head is not None:
        return head_name(source.block, source.head)
    named = {"mlp": f"the MLP of block {source.block}", "embedding": "the embedding"}
    return named.get(source.kind, source.kind)


def written(report: LogitReport, removed: Removed) -> str:
    """Return `what block 0 head 3 writes at token 2` or `the embedding at token 2`."""
    source, token = report.sources[removed.source], report.query if removed.side == "query" else report.key
    if source.kind in ("head", "mlp"):
        return f"what {source_words(source)} writes at token {token}"
    return f"{source_words(source)} at token {token}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _lead(source: SourceRow, side: Side) -> float:
    return source.query_lead if side == "query" else source.key_lead


def _removed_table(report: LogitReport) -> Table:
    every = sorted(report.removed, key=lambda one: -abs(one.weight - report.weight))
    return Table(
        ("taken out", "of the", "adds to the lead", "weight without it"),
        tuple(
            (
                written(report, one),
                one.side,
                signed(_lead(report.sources[one.source], one.side)),
                chance(one.weight),
            )
            for one in every
        ),
        caption=f"The weight is {chance(report.weight)} with everything in place.",
        align="llrr",
        brief=BRIEF,
    )


def _term_table(report: LogitReport) -> Table:
    return Table(
        ("source of the query", "source of the key", "lead", "logit"),
        tuple(
            (
                source_words(report.sources[term.query]),
                source_words(report.sources[term.key]),
                signed(term.lead),
                signed(term.logit),
            )
            for term in report.terms
        ),
        align="llrr",
        brief=BRIEF,
    )


def _side_table(report: LogitReport, side: Side) -> Table:
    adding = [one for one in report.sources if one.query_logit or one.key_logit or one.query_lead or one.key_lead]
    every = sorted(adding, key=lambda one: -abs(_lead(one, side)))
    token = report.query if side == "query" else report.key
    fixed = (("bias of positions", signed(report.bias_lead), signed(report.bias)),) if report.bias else ()
    body = tuple(
        (
            source_words(one),
            signed(_lead(one, side)),
            signed(one.query_logit if side == "query" else one.key_logit),
        )
        for one in every
    )
    return Table(
        (f"{side}: {quoted(report.tokens[token])}", "lead", "logit"), (*body, *fixed), align="lrr", brief=BRIEF
    )
