"""Losses of sequences equal a slow computation, and count the right tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers as hf

from attnscope.commands.treat.halves import HIDDEN, SequenceLoss
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import Loaded

LENGTHS = (9, 6, 4)


class Masks:
    """A tokenizer that only has a mask token."""

    mask_token_id = 1


def batch() -> Batch:
    ids = torch.randint(2, 90, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[n < length for n in range(9)] for length in LENGTHS])
    return Batch({"input_ids": ids, "attention_mask": mask.long()}, mask, (4, 5, 6), int(mask.sum()))


def causal() -> Loaded:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=96, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return in_memory(hf.LlamaForCausalLM(config).eval())


def masked() -> Loaded:
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=96, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return in_memory(hf.BertForMaskedLM(config).eval(), Masks())


@torch.no_grad()
def test_loss_of_a_causal_model_is_over_all_real_next_tokens() -> None:
    loaded, given = causal(), batch()
    losses = SequenceLoss(loaded)(given)
    logits = loaded.model(**given.inputs).logits.double().log_softmax(-1)
    for row, length in enumerate(LENGTHS):
        said = [-logits[row, t, given.inputs["input_ids"][row, t + 1]] for t in range(length - 1)]
        # Sums of at most nine float32 losses near 4.6: 9 * 2^-24 * 4.6 and as much again for the logits.
        assert float(losses[row]) == pytest.approx(float(torch.stack(said).mean()), abs=1e-5)


@torch.no_grad()
def test_skip_first_ignores_tokens_at_the_beginning() -> None:
    loaded, given = causal(), batch()
    logits = loaded.model(**given.inputs).logits.double().log_softmax(-1)
    said = [-logits[0, t, given.inputs["input_ids"][0, t + 1]] for t in range(1, 8)]
    assert float(SequenceLoss(loaded, skip_first=1)(given)[0]) == pytest.approx(
        float(torch.stack(said).mean()), abs=1e-5
    )


@torch.no_grad()
def test_a_masked_model_predicts_the_same_hidden_tokens_each_time() -> None:
    loaded, masked_batch = masked(), batch()
    losing = SequenceLoss(loaded, seed=3)
    inputs, wanted, counts = losing._targets(masked_batch)
    assert torch.equal(wanted, masked_batch.inputs["input_ids"])
    assert (inputs["input_ids"][counts] == 1).all()
    assert torch.equal(inputs["input_ids"][~counts], wanted[~counts])
    assert counts.sum(dim=1).tolist() == [max(1, round(HIDDEN * (length - 2))) for length in LENGTHS]
    assert masked_batch.mask is not None
    assert not (counts & ~masked_batch.mask).any()
    again = replace(masked_batch, samples=masked_batch.samples)
    assert torch.equal(losing(masked_batch), losing(again))
    assert not torch.equal(SequenceLoss(loaded, seed=4)._targets(masked_batch)[2], counts)
    logits = loaded.model(**inputs).logits.double().log_softmax(-1)
    obvious = -logits[0, counts[0]].gather(-1, wanted[0, counts[0], None]).mean()
    assert float(losing(masked_batch)[0]) == pytest.approx(float(obvious), abs=1e-5)


def test_models_without_a_loss_are_refused() -> None:
    loaded = masked()
    with pytest.raises(RefusalError, match="no mask token"):
        SequenceLoss(replace(loaded, tokenizer=None))(batch())
    body = in_memory(hf.LlamaModel(causal().model.config))
    with pytest.raises(RefusalError, match="predicts no tokens"):
        SequenceLoss(replace(body, kind="causal"))(batch())
    with pytest.raises(RefusalError, match="one number for each"):
        SequenceLoss(loaded, given=lambda model, inputs: torch.zeros(2))(batch())
