"""Update what the guides say about pocket: pictures in docs/, and text between marks of five pages.

python -m tools.pocket.figures [PAGE ...]     all, or some of: collapse explain paths statistics treat (a minute or two)

Not updated here: docs/papers.md (run `attnscope reproduce` for every experiment that reads pocket, then
`tools/record_verdicts.py`), a sentence in docs/patterns.md, and the gallery.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import attnscope
from attnscope.commands.evaluate.chart import curves
from attnscope.commands.evaluate.words import method_rows
from attnscope.commands.paths.headline import effect_sentences
from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.words import edge_lines, effect_lines
from attnscope.core.files import write_atomically
from attnscope.core.words import numeral
from attnscope.reports.export import save
from tools.marked import put_between_marks

DOCS = Path(__file__).resolve().parents[2] / "docs"
WRITER = "tools/pocket/figures.py"
TEXT = "The dog chased its own tail and the dog"
PROMPTS = Path(__file__).with_name("prompts.jsonl")
OF = {"values": "Shapley values", "paths": "all paths through a head"}
AGAINST = {"target": "the change of the target", "loss": "the growth of the loss"}


def collapse() -> str:
    """Measure collapse with depth, with and without skips and MLPs."""
    found = attnscope.collapse("pocket", samples=8, max_tokens=64)
    save(found.chart(), DOCS / "collapse_pocket.png")
    return _list(found.sentences())


def carried() -> str:
    """Return the contributions of paths on one text, for the guide to collapse."""
    found = attnscope.paths("pocket", TEXT)
    save(found.chart(), DOCS / "paths_pocket.png")
    return _list((*found.sentences(), *_lengths(found)))


def _lengths(found: PathReport) -> Iterable[str]:
    for row in found.lengths[:3]:
        guess = row.up_to
        says = f"with paths up to this length the model says `{guess.predicted}`"
        loss = "" if guess.loss is None else f", and its loss over the text is {numeral(guess.loss)}"
        heads = "no head" if row.length == 0 else f"{row.length} head{'s' if row.length > 1 else ''}"
        yield f"Paths through {heads} ({row.paths:,}): {numeral(row.value)} of {numeral(found.value)}; {says}{loss}."


def explain() -> str:
    """Return which method is most faithful to the pocket model, on its own book."""
    found = attnscope.evaluate("pocket", samples=16, max_tokens=24)
    save(found.chart(), DOCS / "explain_faithful.png")
    save(curves(found), DOCS / "explain_curves.png")
    columns = ("method", "rank", "gap", "soft gap")
    return "\n\n".join([_table(columns, method_rows(found, columns)), *found.sentences()])


def paths() -> str:
    """Compare values of heads with the effect of removing them, on twenty prompts."""
    found = attnscope.task_paths("pocket", PROMPTS)
    save(found.chart(), DOCS / "task_pocket.png")
    rows = [
        (
            f"{OF[one.of]}, with {AGAINST[one.against]}",
            *("" if c is None else f"{c.value:.2f} [{c.low:.2f}, {c.high:.2f}]" for c in (one.spearman, one.pearson)),
        )
        for one in found.agreement
    ]
    return "\n\n".join([_table(("removal by zero", "Spearman", "Pearson"), rows), *found.sentences()])


def logit() -> str:
    """Return why one head of an induction circuit looks where it looks."""
    found = attnscope.logit_paths("pocket", TEXT, head="1.3")
    save(found.chart(), DOCS / "logit_pocket.png")
    return _list(found.sentences()).replace("<", "&lt;")  # a BOS token is no tag


def without_heads() -> str:
    """Take heads out of the model on one text, and list those and the edges that matter most."""
    found = attnscope.paths("pocket", TEXT, draws=0, mlp=False)
    tables = [_table(lines[0], lines[1:8]) for lines in (effect_lines(found), edge_lines(found))]
    return "\n\n".join([found.sentences()[0], *tables, *effect_sentences(found)])


def treat() -> str:
    """Remove heads in five orders, within a budget."""
    found = attnscope.treat("pocket", remedy="prune", keep_loss=0.05)
    save(found.chart("pruning"), DOCS / "treat_prune_pocket.png")
    save(found.chart("cost"), DOCS / "treat_prune_cost.png")
    assert found.pruning is not None
    orders = found.pruning.orders
    losses = zip(*(order.losses for order in orders), strict=True)
    rows = [(str(n), *(f"{loss:.3f}" for loss in row)) for n, row in zip(found.pruning.counts, losses, strict=True)]
    table = _table(("heads out", *(order.title for order in orders)), rows)
    return "\n\n".join([_list(found.sentences()), table])


def induction() -> str:
    """List the induction heads, measured on repeated random tokens."""
    survey = attnscope.scan("pocket", "repeated", samples=8, measures="induction")
    return _list(one.sentence for one in attnscope.diagnose(survey) if one.kind == "induction_heads")


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "collapse": {"pocket_collapse": collapse, "pocket_carried": carried},
    "explain": {"pocket_explain": explain},
    "paths": {"pocket_paths": paths, "pocket_logit": logit, "pocket_without_heads": without_heads},
    "statistics": {"pocket_induction": induction},
    "treat": {"pocket_treat": treat},
}


def main(asked: list[str]) -> None:
    for name in asked or PAGES:
        page = DOCS / f"{name}.md"
        text = page.read_text("utf-8")
        for mark, make in PAGES[name].items():
            text = put_between_marks(text, mark, WRITER, make())
        write_atomically(page, text.encode())
        print(f"wrote {page.name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
