"""Numbers agree across precisions, thread counts, batch sizes and padding, within the tolerances of docs/statistics.md.

The tolerances are read from the table in that page. They are multiples of

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
    """Return the tolerances by measure, or by `measure.part` if a part has its own row."""
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
    """Return sequences of these lengths, each with the tokens that the model needs before a text."""
    assert loaded.tokenizer is not None
    text = " ".join(ANTIBODY) if "antiberty" in loaded.name else wikitext()[2000:6000]
    ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    first = loaded.tokenizer.cls_token_id if loaded.kind == "masked" else loaded.tokenizer.bos_token_id
    starts = np.cumsum([0, *lengths])
    return [[first, *ids[start : start + n - 1]] for start, n in zip(starts, lengths, strict=False)]


def padded(sequences: Sequence[Sequence[int]], *, left: bool) -> dict[str, torch.Tensor]:
    """Return one padded batch. Positions count only real tokens, so that left padding does not shift a text."""
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
    """Return the first blocks of a deep model, to save time. They include its massive activation."""
    model: Any = loaded.model
    if loaded.kind == "causal":
        model.model.layers = model.model.layers[:BLOCKS]
        model.config.num_hidden_layers = BLOCKS
    return loaded


def cast(loaded: Loaded, precision: str) -> Loaded:
    model: Any = deepcopy(loaded.model)
    return replace(loaded, model=model.to(getattr(torch, precision)))


def excesses(one: Survey, other: Survey, roundoff: float) -> dict[str, float]:
    """Return the largest difference of each measure, in units of its tolerance."""
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
def test_numbers_agree_within_the_stated_tolerance(name: str) -> None:
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
    # Some rounding must be visible, or a run would be compared with itself.
    assert max(found["bfloat16"].values()) > 0.02


def test_every_measure_has_a_tolerance_or_is_excluded() -> None:
    text = (ROOT / "docs" / "statistics.md").read_text("utf-8")
    covered = {name.partition(".")[0] for name in TOLERANCES}
    excepted = {name for name in measures() if f"`{name}" in text.partition("Not stated")[2]}
    assert covered | excepted == set(measures())
