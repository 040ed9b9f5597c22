"""Settings of remedies without training are chosen on the training half, and arms are compared on the same text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnscope.commands.treat import head_orders, pruning, removal_losses
from attnscope.commands.treat import run as treating
from attnscope.commands.treat import trained as without_training
from attnscope.commands.treat.halves import Halves, halves
from attnscope.commands.treat.run import treat
from attnscope.data.batches import Batch, Batches
from attnscope.hf.loading.load import Loaded
from tests.commands.treat.patients import TEXT, patient

SMALL: dict[str, Any] = {"samples": 6, "max_tokens": 24, "batch_size": 2}
TEXTS = [TEXT.replace("e ", f"e {n} ") for n in range(12)]  # no window of one is a window of another


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return patient()


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> list[Halves]:
    """Collect the halves that a treatment makes."""
    made: list[Halves] = []

    def kept(*given: Any, **options: Any) -> Halves:
        made.append(halves(*given, **options))
        return made[0]

    monkeypatch.setattr(treating, "halves", kept)
    return made


def listening(monkeypatch: pytest.MonkeyPatch, room: Any, name: str) -> list[tuple[tuple[Any, ...], Any]]:
    """Record the arguments and the result of every call of a function."""
    heard: list[tuple[tuple[Any, ...], Any]] = []
    own = getattr(room, name)

    def heard_too(*given: Any, **options: Any) -> Any:
        said = own(*given, **options)
        heard.append((given, said))
        return said

    monkeypatch.setattr(room, name, heard_too)
    return heard


def rows(batches: Any) -> set[tuple[int, ...]]:
    return {tuple(row) for batch in batches for row in batch.inputs["input_ids"].tolist()}


def test_temperature_and_its_blocks_are_chosen_on_training_text(
    loaded: Loaded, text: list[Halves], monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = listening(monkeypatch, without_training, "scan")
    losses = listening(monkeypatch, without_training, "sequence_losses")
    treat(loaded, TEXTS, remedy="temperature", **SMALL)
    asked = [given[1] for given, _ in (*scans, *losses)]
    assert len(scans) == 1
    assert len(losses) == len(without_training.TEMPERATURES)
    assert all(rows(one) <= rows(text[0].training) for one in asked)
    assert not any(rows(one) & rows(text[0].held_out) for one in asked)


def test_heads_are_chosen_checked_and_judged_on_three_texts(
    loaded: Loaded, text: list[Halves], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = listening(monkeypatch, head_orders, "head_values")
    shares = listening(monkeypatch, head_orders, "scan")
    parts = listening(monkeypatch, pruning, "two_parts")
    losses = listening(monkeypatch, removal_losses, "sequence_losses")
    treatment = treat(loaded, TEXTS, remedy="prune", keep_loss=3.0, settings={"by": "random", "prompts": 3}, **SMALL)
    choosing, checking = parts[0][1]
    documents = [
        {part.documents[number] for batch in part for number in batch.samples} for part in (choosing, checking)
    ]
    assert not documents[0] & documents[1]
    assert rows(choosing) | rows(checking) <= rows(text[0].training)
    assert not rows(text[0].training) & rows(text[0].held_out)
    valued = {tuple(arguments[1].tolist()) for arguments, _ in values}
    assert rows(shares[0][0][1]) == valued
    assert all(any(row[: len(ids)] == ids for row in rows(choosing)) for ids in valued)
    assert len(valued) == 3
    # The number of heads is final before the first held-out loss is measured.
    held_out = [rows(arguments[1]) == rows(text[0].held_out) for arguments, _ in losses]
    first = held_out.index(True)
    assert all(rows(arguments[1]) <= rows(choosing) | rows(checking) for arguments, _ in losses[:first])
    assert treatment.pruning is not None
    assert treatment.pruning.removed == treatment.pruning.checked[-1].removed > 0
    last = treatment.pruning.checked[-1]
    assert last.rise + 2 * (last.high - last.rise) <= 3.0
    # At random there are several orders; the model is without the heads of the first, whose loss it has.
    order = next(order for order in treatment.pruning.orders if order.name == "random")
    assert treatment.removed == order.heads[: treatment.pruning.removed]
    place = treatment.pruning.counts.index(treatment.pruning.removed)
    assert treatment.loss.mean == pytest.approx(treatment.pruning.curve[place].rise, abs=1e-6)


@torch.no_grad()
def test_arms_with_and_without_bos_read_the_same_tokens(
    loaded: Loaded, text: list[Halves], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = listening(monkeypatch, without_training, "measured_arm")
    treatment = treat(loaded, TEXTS, remedy="bos", bos="no", **SMALL)
    without, with_bos = (arguments[1] for arguments, _ in looked)
    assert isinstance(without, Batches)
    for batch_without, batch_with in zip(without, with_bos, strict=True):
        assert torch.equal(batch_with.inputs["input_ids"][:, 1:], batch_without.inputs["input_ids"])
        assert batch_with.inputs["input_ids"].shape[1] <= SMALL["max_tokens"]
    assert treatment.arms["before"].losses == looked[0][1].arm.losses
    # Slow and obvious: the loss of tokens 1.. of the first sequence with BOS in front.
    batch: Batch = with_bos.batches[0]
    logits = loaded.model(**batch.inputs).logits.double().log_softmax(-1)
    ids = batch.inputs["input_ids"][0]
    length = int(batch.mask[0].sum()) if batch.mask is not None else len(ids)
    losses = torch.stack([-logits[0, t, ids[t + 1]] for t in range(1, length - 1)])
    # Two dozen float32 losses near 6: 24 * 2^-24 * 6 for their sum, and ten times that for the logits.
    assert treatment.arms["treated"].losses[batch.samples[0]] == pytest.approx(float(losses.mean()), abs=1e-4)
