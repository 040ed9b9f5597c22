"""Settings of remedies without training are chosen on the training half, and arms are compared on the same text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnscope.commands.treat import pruning
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


def test_orders_read_the_same_tokens_and_keep_loss_uses_training_text(
    loaded: Loaded, text: list[Halves], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = listening(monkeypatch, pruning, "head_values")
    shares = listening(monkeypatch, pruning, "scan")
    losses = listening(monkeypatch, pruning, "sequence_losses")
    treatment = treat(loaded, TEXTS, remedy="prune", keep_loss=0.4, settings={"by": "random", "prompts": 3}, **SMALL)
    assert treatment.pruning is not None
    valued = {tuple(arguments[1].tolist()) for arguments, _ in values}
    assert rows(shares[0][0][1]) == valued
    assert len(valued) == 3
    # The last curve was asked on training text, and decides; those before are held-out, and do not.
    counts = treatment.pruning.counts
    deciding = losses[-len(counts) :]
    assert all(rows(arguments[1]) <= rows(text[0].training) for arguments, _ in deciding)
    assert all(rows(arguments[1]) == rows(text[0].held_out) for arguments, _ in losses[: -len(counts)])
    curve = [sum(result) / len(result) for _, result in deciding]
    within = [removed for index, removed in enumerate(counts) if max(curve[: index + 1]) <= curve[0] + 0.4]
    assert treatment.pruning.removed == max(within) > 0
    # By chance there are several orders; the model is without the heads of the first, whose loss it has.
    first = next(order for order in treatment.pruning.orders if order.name == "random")
    held = losses[len(counts) * 3 : len(counts) * 4]  # after value, size and contribution
    assert treatment.removed == first.heads[: treatment.pruning.removed]
    expected = held[counts.index(treatment.pruning.removed)][1]
    assert treatment.arms["treated"].losses == pytest.approx(expected, abs=1e-6)  # the same sums, once more


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
