"""The pages of the leaf rooms: each lists the cards of one room."""

from __future__ import annotations

import ast
import inspect
import math
from dataclasses import fields
from pathlib import Path

from attnscope.commands.scan import diagnose as limits
from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.watch.rule import rules
from attnscope.core.registry import constructions, explanations, findings, measures
from tools.site.markdown import code, linked, prose, table

SCOPES = {
    "stream": ("The residual stream", "Of the vectors of tokens between blocks: one number for each block."),
    "attention": ("Attention", "Of the pattern of each head on each sequence, computed without writing a map out."),
    "weights": ("Weights", "Of the projections of each head, without any text."),
    "training": ("Training", "Of one step of a training that `attnscope.watch` looks at."),
}


def measures_page() -> str:
    parts = [
        "# Measures\n",
        "`attnscope measures` lists them in a terminal. `scan --measures default,deep` takes sets.",
    ]
    for scope, (title, words) in SCOPES.items():
        parts.append(f"\n## {title}\n\n{words}\n")
        for measure in measures().values():
            card = measure.card
            if card.scope != scope:
                continue
            parts.append(f"### {card.name}\n\n**{card.title}.** {prose(card.summary)}\n")
            facts = [("unit", card.unit), ("range", f"{card.low:g} to {_high(card.high)}"), ("set", code(card.group))]
            facts += [("where", ", ".join(map(code, card.sites)))]
            facts += [("parts", ", ".join(map(code, card.parts)))] if len(card.parts) > 1 else []
            if card.alarm:
                rings = f"{card.alarm.relation} {card.alarm.threshold:g}".replace("<", "\\<")
                facts += [("worth a look", f"{rings}: {prose(card.alarm.meaning)}")]
            facts += [("reads", ", ".join(map(code, measure.reads))), ("source", linked(card.citation))]
            parts.append(table(("", ""), facts))
    return "\n".join(parts)


def findings_page() -> str:
    rows = [
        (
            code(one.name),
            prose(one.summary),
            prose(one.severity),
            ", ".join(map(code, one.reads)),
            linked(one.citation),
        )
        for one in findings().values()
    ]
    said = _comments()
    limits_rows = [
        (code(one.name), f"{one.default:g}", _span(one.metadata["range"]), linked(prose(said[one.name])))
        for one in fields(Thresholds)
    ]
    alarms = [
        (
            code(name),
            one.severity,
            prose(one.summary),
            " ".join(code(f"{word}={value:g}") for word, value in one.thresholds.items()),
            linked(one.citation),
        )
        for name, one in rules().items()
    ]
    return "\n".join(
        [
            "# Findings and alarms\n",
            "A finding is one sentence about one place in a model, made from a survey. An alarm is the same for a "
            "training run.\n",
            "## Findings\n",
            table(("finding", "what it says", "severity, and why", "measures it reads", "source"), rows),
            "## Thresholds\n",
            "Each can be changed: `attnscope scan MODEL --threshold sink_mass=0.4`, in Python "
            "`attnscope.Thresholds(sink_mass=0.4)`.\n",
            table(("threshold", "default", "may be", "what it decides, and where it comes from"), limits_rows),
            "## Alarms of a training run\n",
            "When they ring and what changes them: [what rings](../watch.md#what-rings).\n",
            table(("rule", "severity", "what it says", "thresholds", "source"), alarms),
        ]
    )


def constructions_page() -> str:
    rows = [
        (
            code(construction.name),
            f"**{construction.title}.** {prose(construction.summary)}",
            "any pattern of its size" if construction.universal else "the pattern it was built for",
            construction.auto or "when it is named",
            linked(construction.citation),
        )
        for construction in constructions().values()
    ]
    return "\n".join(
        [
            "# Constructions\n",
            "Ways to build a head for a sparse pattern: `attnscope compile PATTERN --method NAME`. What they are made "
            "of, and how wide they come out: [build a head](../patterns.md).\n",
            table(("construction", "what it does", "its keys serve", "`--method auto` takes it for", "source"), rows),
        ]
    )


def explanations_page() -> str:
    parts = [
        "# Explanations\n",
        "Ways to say which tokens decided: `attnscope explain MODEL TEXT --method NAME,NAME`. Which of them can be "
        "trusted is measured: [which words decided](../explain.md).\n",
    ]
    for name, explanation in explanations().items():
        card = explanation.card
        parts.append(f"## {name}\n\n**{card.title}.** {prose(card.summary)}\n\n```text\n{card.formula}\n```\n")
        facts = [("costs", card.cost), ("set", code(card.group))]
        facts += [("can a token speak against the answer?", "yes" if card.signed else "no")]
        facts += [("all tokens add up to", card.adds_up or "nothing in particular")]
        facts += [("models", "all" if card.stacks == "all" else "those with one stack of tokens")]
        facts += [("reads", ", ".join(map(code, explanation.reads))), ("source", linked(card.citation))]
        parts.append(table(("", ""), [(term, words) for term, words in facts]))
    return "\n".join(parts)


def _high(value: float) -> str:
    return "no limit" if math.isinf(value) else f"{value:g}"


def _span(bounds: tuple[float, float]) -> str:
    low, high = bounds
    return f"{low:g} or more" if math.isinf(high) else f"{low:g} to {high:g}"


def _comments() -> dict[str, str]:
    """Return the comment of each threshold in its definition: its meaning and its source."""
    text = Path(inspect.getfile(limits)).read_text("utf-8")
    lines = text.splitlines()
    (kind,) = (one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == "Thresholds")
    return {
        one.target.id: lines[(one.end_lineno or one.lineno) - 1].partition("#")[2].strip()
        for one in kind.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
