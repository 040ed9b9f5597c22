"""The same numbers on every precision, thread count, batch size and padding, within what docs/statistics.md states.

Tolerances are read from the table in that page: what is stated is what is tested. They are multiples of

    delta = u sqrt(2 L)

where u is the unit roundoff of the coarser of two runs and L the number of blocks: each of the 2 L writes into the
residual stream is rounded, and errors of independent sign add up like a random walk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.registry import measures
from attnscope.hf.loading.load import Loaded, load
from bench.subjects import wikitext
from tests.docs.lists import ROOT
from tests.real.test_scan_real import ANTIBODY
from tools.fetch_models import path, unquantised

pytestmark = pytest.mark.real

LENGTHS = {"minilm": (24, 19, 13, 8), "antiberty": (24, 19, 13, 8), "smollm2": (16, 9)}
BLOCKS = 14
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
ROW = re.compile(r"^\| (`.+`) \| (absolute|relative) \| (\d+) \|", re.M)


@dataclass(frozen=True)
class Tolerance:
    relative: bool
    times_delta: float


def stated() -> dict[str, Tolerance]:
    """Every measure of the table, or `measure.part` where a part has a row of its own."""
    text = (ROOT / "docs" / "statistics.md").read_text("utf-8")
    return {
        name: Tolerance(kind == "relative", float(times))
        for names, kind, times in ROW.findall(text)
        for name in re.findall(r"`([^`]+)`", names)
    }


TOLERANCES = stated()


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rows(loaded: Loaded, lengths: Sequence[int]) -> list[list[int]]:
    """Sequences of these lengths, each with what the model wants before a text."""
    assert loaded.tokenizer is not None
    text = " ".join(ANTIBODY) if "antiberty" in loaded.name else wikitext()[2000:6000]
    ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    first = loaded.tokenizer.cls_token_id if loaded.kind == "masked" else loaded.tokenizer.bos_token_id
    starts = np.cumsum([0, *lengths])
    return [[first, *ids[start : start + n - 1]] for start, n in zip(starts, lengths, strict=False)]


def padded(sequences: Sequence[Sequence[int]], *, left: bool) -> dict[str, torch.Tensor]:
    """One batch. Positions count real tokens: padding before a text must not move it."""
    longest = max(map(len, sequences))
    made = {name: torch.zeros(len(sequences), longest, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    made["position_ids"] = torch.zeros_like(made["input_ids"])
    for number, row in enumerate(sequences):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        made["input_ids"][number, place] = torch.tensor(row)
        made["attention_mask"][number, place] = 1
        made["position_ids"][number, place] = torch.arange(len(row))
    return made


def scanned(
    loaded: Loaded, sequences: Sequence[Sequence[int]], chosen: Sequence[str], *, size: int, left: bool = False
) -> Survey:
    batches = [padded(sequences[start : start + size], left=left) for start in range(0, len(sequences), size)]
    return attnscope.scan(loaded, batches, measures=list(chosen))


def shortened(loaded: Loaded) -> Loaded:
    """The first blocks of a deep model, which take half the time: they hold its massive activation too."""
    model: Any = loaded.model
    if loaded.kind == "causal":
        model.model.layers = model.model.layers[:BLOCKS]
        model.config.num_hidden_layers = BLOCKS
    return loaded


def cast(loaded: Loaded, precision: str) -> Loaded:
    model: Any = deepcopy(loaded.model)
    return replace(loaded, model=model.to(getattr(torch, precision)))


def excesses(one: Survey, other: Survey, roundoff: float) -> dict[str, float]:
    """By measure, the largest difference in units of what is stated: above 1 is too much."""
    found: dict[str, float] = {}
    for key, cell in one.cells.items():
        allowed = TOLERANCES.get(f"{key.measure}.{key.part}", TOLERANCES.get(key.measure))
        if allowed is None:
            continue
        mine, theirs = (np.asarray(c.moments.mean) for c in (cell, other.cells[key]))
        apart = np.abs(mine - theirs) / (np.abs(mine) if allowed.relative else 1.0)
        blocks = next(s["layers"] for s in one.provenance["model"]["stacks"] if s["name"] == key.stack)
        delta = roundoff * math.sqrt(2 * blocks)
        found[key.measure] = max(found.get(key.measure, 0.0), float(apart.max()) / (allowed.times_delta * delta))
    return found


MODELS = {
    "minilm": tuple(TOLERANCES),  # the deep ones too: it has six blocks
    "antiberty": tuple(name for name in TOLERANCES if measures()[name.partition(".")[0]].card.group == "default"),
    "smollm2": ("entropy", "effective_support", "sink_mass", "mean_distance", "relative_residual", "spike"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.thorough
def test_numbers_are_the_same_within_what_is_stated(name: str) -> None:
    chosen = sorted({measure.partition(".")[0] for measure in MODELS[name]})
    loaded = shortened(load(unquantised(name) if name == "smollm2" else path(name), allow_pickle=True))
    read = rows(loaded, LENGTHS[name])
    plain = scanned(loaded, read, chosen, size=1)
    with threads(2):
        otherwise = scanned(loaded, read, chosen, size=len(read), left=True)
    found = {"2 threads, one batch, left padding": excesses(plain, otherwise, ROUNDOFF["float32"])}
    for precision in ("float16", "bfloat16"):
        half = scanned(cast(loaded, precision), read, chosen, size=len(read))
        assert half.provenance["dtype"] == precision
        found[precision] = excesses(plain, half, ROUNDOFF[precision])
    assert set(found["bfloat16"]) == set(chosen)
    too_much = {(run, m): value for run, worst in found.items() for m, value in worst.items() if value > 1}
    assert not too_much
    # What rounding does must be seen at all, or the comparison compares a run with itself.
    assert max(found["bfloat16"].values()) > 0.02


def test_every_measure_is_stated_or_said_not_to_be() -> None:
    text = (ROOT / "docs" / "statistics.md").read_text("utf-8")
    covered = {name.partition(".")[0] for name in TOLERANCES}
    excepted = {name for name in measures() if f"`{name}" in text.partition("Not stated")[2]}
    assert covered | excepted == set(measures())
