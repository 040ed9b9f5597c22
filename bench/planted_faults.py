"""The faults and controls of `bench.watch_faults`: functions that change a training from a step on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.fault_training import Training, batch_of, blocks_of, rate_at

OTHER_BOOK = "bible-kjv.txt"

# Faults. Each takes a training and the step from which it acts, and changes the training.


def mask_lost(training: Training, step: int) -> None:
    for block in blocks_of(training.model):
        block.attn.is_causal = False


def mask_lost_in_one_block(training: Training, step: int) -> None:
    blocks_of(training.model)[training.block].attn.is_causal = False


def _times(factor: float) -> Callable[[Training, int], None]:
    def change(training: Training, step: int) -> None:
        before = training.rate
        training.rate = lambda number: factor * before(number)

    return change


def block_frozen(training: Training, step: int) -> None:
    blocks_of(training.model)[training.block].requires_grad_(False)


def one_batch_repeated(training: Training, step: int) -> None:
    kept = batch_of(training.subject, 1_000_003 * training.seed + step)
    training.change_batch = lambda batch, number: kept


def first_token_dropped(training: Training, step: int) -> None:
    """Sequences begin in the middle of the text."""

    def change(batch: dict[str, Tensor], number: int) -> dict[str, Tensor]:
        other = batch_of(training.subject, 7 + number)["input_ids"][:, 5]
        ids, labels = batch["input_ids"].clone(), batch["labels"].clone()
        ids[:, 0] = other
        if training.subject.causal:
            labels[:, 0] = other
        return {"input_ids": ids, "labels": labels}

    training.change_batch = change


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim == 2]


def rounded_to_bfloat16(training: Training, step: int) -> None:
    @torch.no_grad()
    def change() -> None:
        for p in _matrices(training.model):
            p.copy_(p.bfloat16().float())

    training.change_weights = change


def rounded_to_8_bits(training: Training, step: int) -> None:
    @torch.no_grad()
    def change() -> None:
        for p in _matrices(training.model):
            grid = p.abs().max() / 127
            p.copy_((p / grid).round() * grid)

    training.change_weights = change


def norms_decayed(training: Training, step: int) -> None:
    gains = [
        p
        for block in blocks_of(training.model)
        for name, p in block.named_parameters()
        if p.ndim == 1 and name.endswith("weight")
    ]

    @torch.no_grad()
    def change() -> None:
        for gain in gains:
            gain.mul_(0.98)

    training.change_weights = change


def gradient_zeroed(training: Training, step: int) -> None:
    own = list(blocks_of(training.model)[training.block].parameters())

    def change() -> None:
        for p in own:
            if p.grad is not None:
                p.grad.zero_()

    training.change_gradients = change


def nan_batch(training: Training, step: int) -> None:
    """One batch in which no label counts: the mean over no labels is NaN."""

    def change(batch: dict[str, Tensor], number: int) -> dict[str, Tensor]:
        return {**batch, "labels": torch.full_like(batch["labels"], -100)} if number == step else batch

    training.change_batch = change


def optimizer_state_lost(training: Training, step: int) -> None:
    training.optimizer.state.clear()


def labels_shifted(training: Training, step: int) -> None:
    training.change_batch = lambda batch, _: {**batch, "labels": batch["labels"].roll(-1, dims=1)}


# Controls: nothing, or a change that harms nothing.


def other_order(training: Training, step: int) -> None:
    """Only the order of the data differs."""


def warm_restart(training: Training, step: int) -> None:
    training.rate = lambda number: rate_at(training.subject, 10 + number - step)


def other_book(training: Training, step: int) -> None:
    training.names = (OTHER_BOOK,)


FAULTS: dict[str, Callable[[Training, int], None]] = {
    "mask lost": mask_lost,
    "mask lost in one block": mask_lost_in_one_block,
    "learning rate x 10": _times(10.0),
    "learning rate x 3": _times(3.0),
    "block frozen": block_frozen,
    "one batch repeated": one_batch_repeated,
    "first token dropped": first_token_dropped,
    "weights rounded to bfloat16": rounded_to_bfloat16,
    "weights rounded to 8 bits": rounded_to_8_bits,
    "norms decayed": norms_decayed,
    "gradient of a block zeroed": gradient_zeroed,
    "batch without labels (NaN)": nan_batch,
    "optimiser state lost": optimizer_state_lost,
    "labels shifted": labels_shifted,
}
PLACED = ("mask lost", "mask lost in one block", "block frozen", "gradient of a block zeroed")
CAUSAL_ONLY = ("mask lost", "mask lost in one block")
CONTROLS: dict[str, Callable[[Training, int], None]] = {
    **{f"other order {n}": other_order for n in range(8)},
    **{f"warm restart {n}": warm_restart for n in range(1, 4)},
    **{f"other book {n}": other_book for n in range(1, 4)},
}
