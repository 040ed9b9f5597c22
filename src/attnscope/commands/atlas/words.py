"""The sentences and the document of the atlas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from attnscope.commands.atlas.ranges import FEWEST, Pools, Quantity, Reference, pools, range_of
from attnscope.commands.atlas.record import Atlas, Entry, EntryStack, StackKind
from attnscope.core.limits import MASSIVE_SIZE, SINK_MASS
from attnscope.core.words import count, listed, numeral, percent
from attnscope.reports.document import Document, Section, Table, rows
from attnscope.reports.words import Verdict

ODD = 3  # models that are named as least usual
SHOWN = (
    ("sink_mass", "value", "self", "attention to the first token"),
    ("entropy", "value", "self", "entropy, as a share of the largest possible"),
    ("self_attention", "value", "self", "attention to the token itself"),
    ("previous_token", "value", "self", "attention to the token before"),
    ("relative_residual", "value", "stream", "how much tokens differ, relative to their size"),
    ("token_cosine", "value", "stream", "cosine between tokens"),
    ("spike", "value", "stream", "largest entry of the stream"),
    ("max_logit", "value", "self", "largest logit"),
    ("write", "attention", "self", "what attention writes, relative to the stream"),
    ("write", "mlp", "self", "what MLPs write, relative to the stream"),
    ("slope", "attention", "self", "slope of the loss in a factor on attention"),
    ("slope", "mlp", "self", "slope of the loss in a factor on an MLP"),
)
"""Measure, part, site and words of the rows in the table of ranges."""


def verdict(atlas: Atlas) -> Verdict:
    """Say what is typical: how many models have sinks, and how far random twins are from it."""
    sinking, twins = _share_of_sinks(atlas)
    return Verdict(
        "calm",
        f"{count(len(atlas.entries), 'real model')} from {len(atlas.families)} families: {sinking} have a head that"
        f" puts most of its attention on the first token; {twins or 'none'} of their twins with random weights"
        f" {'has' if twins < 2 else 'have'} one.",
    )


def _share_of_sinks(atlas: Atlas) -> tuple[int, int]:
    def sinks(stacks: tuple[EntryStack, ...]) -> bool:
        grids = [stack.grid("sink_mass", "value", "self") for stack in stacks]
        return any(grid is not None and len(grid.values) and grid.values.max() > 0.5 for grid in grids)

    return sum(sinks(entry.stacks) for entry in atlas.entries), sum(sinks(entry.twin) for entry in atlas.entries)


def document(atlas: Atlas) -> Document:
    return Document(
        verdict(atlas),
        f"Atlas: attention in {len(atlas.entries)} real models",
        about=("Every model was scanned on text of its own kind with the same settings",),
        sections=(
            Section("What is typical, and what is odd", sentences=tuple(_typical(atlas)), link="Typical and odd"),
            Section(
                "What is usual",
                background=(
                    "The median, and 5% to 95% over models and heads. Every model counts the same, and models of one "
                    f"shape count as one. A range needs {FEWEST} shapes or more. Random twins have the same "
                    "architecture and weights as before training.",
                ),
                tables=(_ranges(atlas, "decoder"), _ranges(atlas, "encoder")),
            ),
            Section("Models", tables=(_models(atlas),)),
        ),
        provenance=rows({"settings": atlas.settings, "attnscope": atlas.attnscope}),
    )


def _typical(atlas: Atlas) -> Iterator[str]:
    """Yield what most models of a kind have in common, and the models that differ most from the others."""
    for kind in get_args(StackKind):
        sinks = [share for entry in atlas.entries if (share := sink_share(entry.stacks[-1], kind)) is not None]
        if sinks:
            middle, most = (percent(float(share)) for share in (np.median(sinks), max(sinks)))
            yield (
                f"Sinks: in the median {kind} (of {len(sinks)}) {middle} of the heads put over {SINK_MASS:g} of their"
                f" attention on the first token; in the one with the most, {most}."
            )
    large = [entry.name for entry in atlas.entries if spike(entry) > MASSIVE_SIZE]
    yield (
        f"Massive activations: {count(len(large), 'model')} of {len(atlas.entries)} have entries of the stream above"
        f" {MASSIVE_SIZE:g}: {listed(large, most=12)}."
    )
    wrong = [entry.name for entry in atlas.entries if any(severity == "wrong" for _, severity in entry.findings)]
    judged = f"{len(wrong)} of {len(atlas.entries)} models have a finding that is wrong"
    yield f"Judged by the others, {judged}{f': {listed(wrong)}' if wrong else ''}."
    odd = sorted((entry for entry in atlas.entries if entry.inside == entry.inside), key=lambda entry: entry.inside)
    told = [f"{entry.name} ({percent(entry.inside)})" for entry in odd[:ODD]]
    if told:
        middle = percent(float(np.median([entry.inside for entry in odd])))
        yield f"Fewest numbers in the usual range of the others: {listed(told)}; the median model has {middle}."


def _ranges(atlas: Atlas, kind: StackKind) -> Table:
    lines = []
    twins = [replace(entry, stacks=entry.twin) for entry in atlas.entries]
    for measure, part, site, words in SHOWN:
        quantity = Quantity(measure, part, kind, site)
        found, random = (_usual(entries, quantity) for entries in (atlas.entries, twins))
        if found is not None:
            beside = "–" if random is None else f"{numeral(random.median, 2)} ({_span(random)})"
            lines.append((words, numeral(found.median, 2), _span(found), str(found.models), beside))
    return Table(("", "median", "5% to 95%", "shapes", "random twins"), tuple(lines), caption=f"{kind.capitalize()}s")


def _usual(entries: Sequence[Entry], quantity: Quantity) -> Reference | None:
    each = pools(entries, quantity)
    return range_of(Pools(each, f"{quantity.kind}s")) if len(each) >= FEWEST else None


def _span(found: Reference) -> str:
    return f"{numeral(found.low, 2)} to {numeral(found.high, 2)}"


def _models(atlas: Atlas) -> Table:
    heading = ("model", "family", "size", "blocks × heads", "loss", "sinks", "largest entry")
    return Table(heading, tuple(_model_row(entry) for entry in atlas.entries), align="llrrrrr")


def _model_row(entry: Entry) -> tuple[str, ...]:
    stack = entry.stacks[-1]
    return (
        entry.name,
        entry.family,
        size_words(entry.parameters),
        " + ".join(f"{s.layers} × {s.heads}" for s in entry.stacks),
        "–" if math.isnan(entry.loss) else numeral(entry.loss, 3),
        sink_words(stack),
        spike_words(entry),
    )


def size_words(parameters: int) -> str:
    """Return `135M` or `1.2B`."""
    return f"{parameters / 1e9:.2g}B" if parameters >= 1e9 else f"{parameters / 1e6:.3g}M"


def sink_words(stack: EntryStack) -> str:
    """Return the share of heads with more than 30% of their attention on the first token."""
    share = sink_share(stack, stack.kind)
    return "–" if share is None else percent(share)


def sink_share(stack: EntryStack, kind: StackKind) -> float | None:
    """Return the share of heads that sink in a stack of this kind."""
    grid = stack.grid("sink_mass", "value", "self")
    known = stack.kind == kind and grid is not None and len(grid.values)
    return float((grid.values > SINK_MASS).mean()) if known and grid is not None else None


def spike_words(entry: Entry) -> str:
    return numeral(spike(entry), 3) if spike(entry) > 0 else "–"


def spike(entry: Entry) -> float:
    """Return the largest entry of the stream of any stack; 0 if it was not measured."""
    grids = [stack.grid("spike", "value", "stream") for stack in entry.stacks]
    return max((float(np.max(grid.values)) for grid in grids if grid is not None and len(grid.values)), default=0.0)
