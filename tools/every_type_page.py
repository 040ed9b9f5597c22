"""Write the second part of docs/families.md, on every model type of transformers, from outcomes of `every_family.py`.

It has a table of the types that were built, with the outcomes of scan, paths, collapse and explain; a numbered list of
the reasons for refusals; and the types that were not built, by reason. `read_table` reads the page back, for its test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

COMMANDS = ("scan", "paths", "collapse", "explain")
COLUMNS = ("type", "class", *COMMANDS)
HEADING = "## Every model type"
_NO_SOFTMAX = ("has no softmax attention", "no softmax over keys", "gates over channels")

TEXT = """{heading}

Written by `make families` from `tools/every_family.py`, which builds a tiny random model of every type that
transformers {version} knows ({known} types), and runs `scan`, `paths`, `collapse` and `explain` on it in a process of
its own, within {limits}.

- **{built} types were built.** {softmax} of them have softmax attention, and **{verified} of those ({share}) are
  verified** by `scan`: every attention of the run recomputed in float64 and compared with what the model passed on (the
  number is the largest difference, relative), the output equal bit for bit. {others} have none (convolutions, state
  spaces, kernels).
- `paths` is exact on {exact} (the number: how far the sum of all parts is from the model, relative), `collapse` done
  on {done}.
- `explain` is verified on {explained}: relevance by the fast route, which keeps no map, beside the rule of the paper on
  maps that the model writes out, with gradients from autograd (the number: the largest difference, relative to the
  largest relevance; two kernels in float32 may differ by {near:.0e}). *Of a batch*: the input is no text; relevance was
  asked for in Python, below the command. *In part*: other stacks take part in the answer too, which the record notes.
  *ran*: it ran, and there were no maps to compare with (a reason says why).
- After all four, one step of training was taken with every model that could be trained before: {trained}.
- What is not done is refused in a sentence; the numbers in brackets stand for the reasons below, in which CLASS,
  MODULE and N stand for what differs from type to type. Tracebacks: {tracebacks}.
- *stream only*: blocks of a hybrid that have no softmax attention, whose residual stream is measured.
- Parts of models (a text or a vision tower) are types of their own in transformers, and so they are here.

"""


def page(outcomes: Mapping[str, Mapping[str, Any]], version: str, limits: str, near: float) -> str:
    """Return the part of the page on every type."""
    built = {name: said for name, said in outcomes.items() if said["built"] == "yes"}
    without = [name for name, said in built.items() if any(words in said["scan"] for words in _NO_SOFTMAX)]
    verified = [name for name, said in built.items() if said["scan"].startswith("verified")]
    softmax = len(built) - len(without)
    everything = [said[name] for said in built.values() for name in COMMANDS]
    text = TEXT.format(
        heading=HEADING,
        version=version,
        known=len(outcomes),
        limits=limits,
        built=len(built),
        softmax=softmax,
        verified=len(verified),
        share=f"{100 * len(verified) / max(softmax, 1):.1f}%",
        others=len(without),
        exact=sum(said["paths"].startswith("exact") for said in built.values()),
        done=sum(said["collapse"].startswith("done") for said in built.values()),
        explained=sum(said["explain"].startswith("verified") for said in built.values()),
        near=near,
        trained=_trained(built),
        tracebacks=sum(one.startswith("TRACEBACK") for one in everything) or "none",
    )
    reasons: dict[str, int] = {}
    rows = [_row(name, said, reasons) for name, said in sorted(built.items())]
    lines = ["| " + " | ".join(cells) + " |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    why = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([text + "\n".join(lines), "", "### Reasons", "", *why, "", *_not_built(outcomes), ""])


def _trained(built: Mapping[str, Mapping[str, Any]]) -> str:
    steps = {name: step for name, said in built.items() if (step := said.get("training", "not")).split()[0] != "not"}
    stopped = sorted(name for name, step in steps.items() if step != "done")
    return f"{len(steps) - len(stopped)} of {len(steps)} still can" + (f", not {', '.join(stopped)}" if stopped else "")


def _row(name: str, said: Mapping[str, Any], reasons: dict[str, int]) -> tuple[str, ...]:
    cells = [_cell(said[command], said["class"], reasons) for command in COMMANDS]
    notes = said.get("notes", ())
    if any("INCOMPLETE" in note for note in notes):
        cells[0] += ", in part"
    if any("stream only" in note or "the attention is not" in note for note in notes):
        cells[0] += ", some blocks stream only"
    return (name, f"`{said['class']}`", *cells)


def _cell(outcome: str, model_class: str, reasons: dict[str, int]) -> str:
    word, _, rest = outcome.partition(" ")
    if word not in ("refused:", "stopped:", "ran:", "TRACEBACK"):
        return outcome.removesuffix(" in float64")
    reason = general(rest, model_class)
    return f"{word.rstrip(':')} [{reasons.setdefault(reason, len(reasons) + 1)}]"


def general(reason: str, model_class: str) -> str:
    """Return a reason without names of classes and modules and without numbers, so that several types share it."""
    reason = reason.replace(model_class, "CLASS")
    reason = re.sub(r"\b(in|of|through) [a-z_]+(\.[\w]+)+", r"\1 MODULE", reason)
    reason = re.sub(
        r"(attends in |attention of CLASS in |mix tokens by |experts \()[A-Z]\w+(, [A-Z]\w+)*( and others)?",
        r"\1MODULE",
        reason,
    )
    return re.sub(r"(?<![\w\[])\d[\d.,]*(e[+-]\d+)?(?<![.,])", "N", reason)


def _not_built(outcomes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for name, said in sorted(outcomes.items()):
        if said["built"] != "yes":
            groups.setdefault(_why_not(said["built"]), []).append(name)
    listed = [f"- {why}: {', '.join(names)}." for why, names in sorted(groups.items())]
    return ["### Not built from a small configuration", "", *listed]


def _why_not(said: str) -> str:
    missing = re.search(r"requires the (\S+) library", said)
    if missing:
        return f"needs the library {missing[1]}"
    if "no model class" in said:
        return "no model class of its own"
    if "not swept" in said:
        return "left for the next `make families` (the last one was stopped before it came to them)"
    if "more than" in said:
        return "takes too long or too much memory, even small"
    return "no small settings, or no batch, were found that it runs on"


def read_table(text: str) -> dict[str, dict[str, str]]:
    """Return the cells of the table of every type, by type and column."""
    after = text[text.index(HEADING) :]
    rows = [line.strip("| ").split(" | ") for line in after.splitlines() if line.startswith("| ")]
    return {cells[0]: dict(zip(COLUMNS, cells, strict=True)) for cells in rows[2:]}


def word_of(outcome: str) -> str:
    """Return the first word of an outcome or a cell, which must be the same on every machine."""
    return outcome.split(maxsplit=1)[0].strip(":,[]")
