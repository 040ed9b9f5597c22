"""Verify `explain` on one model: compare its relevance with the same rule on dense attention maps.

`explained(model, batch)` calls `attnscope.explain` and returns `verified` with the largest difference from the dense
rule (`tests.explanations.dense`), relative to the largest number, or `ran` if the model cannot return dense maps. The
command does not read a batch without token numbers: its internal functions explain such a batch, and the outcome says
`of a batch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

# Two kernels compute one model: an entry passes through a few hundred roundings, and the rule adds no cancellation,
# since all its terms are 0 or more; gradients themselves are differences. As in tests/explanations/test_relevance.py.
ALLOWED = 4e3 * torch.finfo(torch.float32).eps


def explained(model: Any, batch: dict[str, Tensor]) -> str:
    """Return the outcome in a few words."""
    import attnscope
    from attnscope.commands.explain.aiming import in_streams
    from attnscope.commands.explain.running import start_of
    from attnscope.core.errors import RefusalError
    from attnscope.explanations.relevance import relevance
    from attnscope.hf.anatomy.anatomy import anatomy
    from attnscope.hf.tapping.capture import capture
    from attnscope.hf.tapping.entrances import entrances
    from attnscope.matrix.relevance import read_each_other

    twin = deepcopy(model)  # copied before any run: some models keep states of a run, with gradients
    of_tokens = any(name.endswith("input_ids") for name in batch)
    try:
        record = attnscope.explain(model, batch, methods="relevance")
        number = _asked(record)
    except RefusalError as refusal:
        if of_tokens:
            raise
        record, number, said = None, _norm, refusal
    found = anatomy(model, batch)
    given = {name: value.clone().requires_grad_(value.is_floating_point()) for name, value in batch.items()}
    places = () if record is None else entrances(model, batch, found)
    if record is None:
        try:
            captured = capture(model, given, found, places, number)
            rows = relevance(calls=captured.calls, start=start_of(captured, found))
        except RefusalError:
            raise said from None  # the sentence that a user sees
    else:
        captured = capture(model, given, found, places, number)
        if read_each_other(in_streams(captured, places).calls):
            return "ran: streams that read each other, which tests/explanations/test_two_streams.py compares"
        scores = record.methods[0].scores
        rows = {place.stack: torch.tensor(row) for place, row in zip(places, scores, strict=True)}
    outcome = _compared(twin, batch, number, rows, captured)
    if record is None:
        return f"{outcome}, of a batch"
    return outcome + (", in part" if any("not followed" in note for note in record.notes) else "")


def _compared(
    model: Any, batch: dict[str, Tensor], number: Callable[[Tensor], Tensor], rows: dict[str, Tensor], captured: Any
) -> str:
    from tests.explanations.dense import by_the_rule, placed, written_out

    said = []
    for eager in (True, False):  # the eager attention of some models computes something else, or fails
        try:
            maps, value = written_out(model, batch, number, eager)
        except (RuntimeError, ValueError) as error:
            said.append(f"ran: written out, it does not run ({type(error).__name__})")
            continue
        if not abs(value - captured.value) <= ALLOWED * abs(captured.value):
            said.append("ran: written out, the model gives another number")
        elif len(maps) != len(captured.calls):
            said.append("ran: written out, it makes more or fewer maps than it attends (windows or blocks in pieces)")
        else:
            break
    else:
        return said[-1]
    at_places = placed(maps, captured.calls)
    if at_places is None:
        return "ran: written out, its maps have another shape"
    dead = [not bool(call.gradient.any()) for call in captured.calls if len(call.scores.query) == 1]
    if any(zero and one.stack in rows and bool(one.reach.any()) for zero, one in zip(dead, at_places, strict=True)):
        return "ran: some of its attention does not depend on this input, and there is no gradient to compare"
    dense = by_the_rule(at_places, captured.embedding)
    full = {stack: row for stack, row in rows.items() if len(row) and stack in dense}
    largest = max(float(dense[stack].max()) for stack in full)
    if largest <= 0:
        return "ran: no token is relevant"
    difference = max(float((row.double() - dense[stack]).abs().max()) for stack, row in full.items()) / largest
    if not math.isfinite(difference):
        return "ran: written out, its maps hold what is not a number"
    return f"verified {difference:.0e}" if difference <= ALLOWED else f"ran: differs by {difference:.0e}"


def _asked(record: Any) -> Callable[[Tensor], Tensor]:
    """Return the number that was explained, rebuilt from the record."""
    if record.asked.kind == "match":
        return lambda output: output.diagonal()
    if record.asked.kind == "norm" and record.asked.of == "state of [CLS]":
        return lambda output: output[:, 0].norm(dim=-1)
    if record.asked.kind == "norm":
        return lambda output: (output.mean(1) if output.ndim == 3 else output).norm(dim=-1)
    word = record.asked.word
    entry = int(word.removeprefix("LABEL_"))
    return lambda output: output[:, entry] if record.position is None else output[:, record.position, entry]


def _norm(output: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(output.flatten(1), dim=-1)
    return size
