"""Windows become batches: padding is invisible, sequences keep their numbers, halves are the whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch, Batches, batches
from attnscope.data.windows import Window, Windows


def sequences(lengths: list[int], types: bool = False) -> Windows:
    made = [
        Window(tuple(range(10 * i + 3, 10 * i + 3 + length)), (0,) * (length - 1) + (1,) if types else None)
        for i, length in enumerate(lengths)
    ]
    return Windows("test", "0" * 64, tuple(made), max(lengths))


def mask_of(batch: Batch) -> Tensor:
    assert batch.mask is not None
    return batch.mask


def decoder_mask_of(batch: Batch) -> Tensor:
    assert batch.decoder_mask is not None
    return batch.decoder_mask


lengths = st.lists(st.integers(2, 9), min_size=1, max_size=20)


@given(lengths, st.integers(1, 6))
def test_every_sequence_is_in_exactly_one_batch_under_its_number(sizes: list[int], batch_size: int) -> None:
    windows = sequences(sizes)
    made = batches(windows, batch_size=batch_size, pad=2)
    found = {
        sample: tuple(row[mask].tolist())
        for batch in made
        for sample, row, mask in zip(batch.samples, batch.inputs["input_ids"], mask_of(batch), strict=True)
    }
    assert found == {i: w.ids for i, w in enumerate(windows.sequences)}
    assert made.samples == len(sizes)
    assert made.tokens == windows.tokens == sum(int(mask_of(batch).sum()) for batch in made)
    assert all(1 <= len(batch) <= batch_size for batch in made)
    widths = [batch.inputs["input_ids"].shape[1] for batch in made]
    assert widths == sorted(widths, reverse=True)


@given(lengths, st.integers(1, 6))
def test_attention_mask_is_there_only_with_padding(sizes: list[int], batch_size: int) -> None:
    for batch in batches(sequences(sizes), batch_size=batch_size):
        assert ("attention_mask" in batch.inputs) == (not bool(mask_of(batch).all()))
        if "attention_mask" in batch.inputs:
            assert torch.equal(batch.inputs["attention_mask"].bool(), mask_of(batch))
            assert max(sizes) not in {sizes[i] for i in batch.samples}


def test_by_hand() -> None:
    made = batches(sequences([2, 4, 3, 4]), batch_size=2, pad=None)
    assert [batch.samples for batch in made] == [(1, 3), (2, 0)]
    assert made.batches[1].inputs["input_ids"].tolist() == [[23, 24, 25], [3, 4, 0]]
    assert made.batches[1].inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert made.batches[1].tokens == 5
    assert made.batches[1].decoder_mask is None


def test_encoder_decoder_reads_the_sequence_shifted_right() -> None:
    (full,) = batches(sequences([3]), decoder_start=7)
    assert full.inputs["decoder_input_ids"].tolist() == [[7, 3, 4]]
    assert set(full.inputs) == {"input_ids", "decoder_input_ids"}
    padded = batches(sequences([5, 3, 2]), decoder_start=7, pad=1).batches[1]
    assert padded.inputs["decoder_input_ids"].tolist() == [[7, 13, 14], [7, 23, 1]]
    assert torch.equal(padded.inputs["decoder_attention_mask"], padded.inputs["attention_mask"])
    assert torch.equal(decoder_mask_of(padded), mask_of(padded))


def test_token_types_are_passed_only_if_accepted() -> None:
    windows = sequences([3, 2, 2], types=True)
    assert batches(windows).batches[0].inputs["token_type_ids"].tolist() == [[0, 0, 1]]
    taken = batches(windows, accepts=frozenset({"input_ids", "token_type_ids"}))
    assert "token_type_ids" in taken.batches[1].inputs
    left = batches(windows, accepts=frozenset({"input_ids"}))
    assert all("token_type_ids" not in batch.inputs for batch in left)


@given(lengths)
def test_halves_hold_the_same_rows(sizes: list[int]) -> None:
    for batch in batches(sequences(sizes, types=True), batch_size=20, decoder_start=0):
        if len(batch) < 2:
            continue
        one, two = batch.halves()
        assert one.samples + two.samples == batch.samples
        assert one.tokens + two.tokens == batch.tokens
        assert abs(len(one) - len(two)) <= 1
        for name, whole in batch.inputs.items():
            assert torch.equal(torch.cat([one.inputs[name], two.inputs[name]]), whole)
        assert torch.equal(torch.cat([mask_of(one), mask_of(two)]), mask_of(batch))
        assert torch.equal(torch.cat([decoder_mask_of(one), decoder_mask_of(two)]), decoder_mask_of(batch))


def test_a_single_sequence_has_no_halves() -> None:
    (batch,) = batches(sequences([4]))
    with pytest.raises(RefusalError, match="single sequence of 4 tokens"):
        batch.halves()


def test_rows_that_are_not_sequences_have_no_halves() -> None:
    patches = Batch({"input_ids": torch.ones(2, 3).long(), "patches": torch.ones(7, 2)}, None, (0, 1), 6)
    with pytest.raises(RefusalError, match="patches"):
        patches.halves()


def test_empty_batch_size_is_refused() -> None:
    with pytest.raises(RefusalError, match="`batch_size=` cannot be 0: pass 1 or more"):
        batches(sequences([3]), batch_size=0)


def test_ready_batches() -> None:
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    text = {"input_ids": torch.tensor([[0, 5, 6], [7, 8, 9]]), "attention_mask": mask}
    made = Batches.of([{"pixel_values": torch.zeros(3, 3, 4, 4)}, text])
    assert [batch.samples for batch in made] == [(0, 1, 2), (3, 4)]
    assert made.batches[0].mask is None
    assert mask_of(made.batches[1]).tolist() == [[False, True, True], [True, True, True]]
    assert [batch.tokens for batch in made] == [3, 5]
    assert (len(made), made.samples, made.tokens) == (2, 5, 8)
    assert len(list(made)) == len(list(made))
    again = Batches.of([{"pixel_values": torch.zeros(3, 3, 4, 4)}, dict(reversed(text.items()))])
    assert again.sha256 == made.sha256
    other = Batches.of([{"pixel_values": torch.zeros(3, 3, 4, 4) + 1e-6}, text])
    assert other.sha256 != made.sha256


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int64])
def test_ready_batches_of_any_dtype_are_hashed(dtype: torch.dtype) -> None:
    assert len(Batches.of([{"x": torch.ones(2, 3).to(dtype)}]).sha256) == 64


def test_bad_ready_batches_are_refused() -> None:
    with pytest.raises(RefusalError, match="at least one"):
        Batches.of([])
    with pytest.raises(RefusalError, match="Batch 0 must map"):
        Batches.of([{}])
    with pytest.raises(RefusalError, match="Batch 1 must map"):
        Batches.of([{"x": torch.ones(2)}, {"x": torch.tensor(1.0)}])
    with pytest.raises(RefusalError, match="Batch 0 holds no sequence"):
        Batches.of([{"x": torch.ones(0, 2)}])


def test_to_moves_everything() -> None:
    batch = batches(sequences([3, 2, 2]), decoder_start=0).batches[1].to("meta")
    tensors = [*batch.inputs.values(), mask_of(batch), decoder_mask_of(batch)]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
