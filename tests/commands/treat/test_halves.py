"""Ready batches are split by document if they name documents, else by batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnscope.commands.treat.halves import halves, two_parts
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batches
from attnscope.hf.loading.options import Sampling
from tests.commands.treat.patients import TEXT, patient

SAMPLING = Sampling(samples=8, max_tokens=16, batch_size=4)


def numbered(batches: int, rows: int) -> Batches:
    """Sequence n is n, n, n, ..."""
    numbers = torch.arange(batches * rows).reshape(batches, rows, 1).expand(-1, -1, 6)
    return Batches.of([{"input_ids": one.clone()} for one in numbers])


def sequences(half: Batches) -> list[int]:
    return [int(row[0]) for batch in half for row in batch.inputs["input_ids"]]


def test_ready_batches_share_no_document() -> None:
    """Documents of three sequences span batches of four: batches are split, and rows keep their documents."""
    ready = replace(numbered(9, 4), documents=tuple(n // 3 for n in range(36)))
    made = halves(patient(), ready, SAMPLING, training=36)
    ours, theirs = sequences(made.training), sequences(made.held_out)
    assert sorted(ours + theirs) == list(range(36))
    assert not {n // 3 for n in ours} & {n // 3 for n in theirs}
    assert made.held_out.documents == tuple(n // 3 for n in theirs)
    assert [n for batch in made.held_out for n in batch.samples] == list(range(len(theirs)))
    assert len(set(made.held_out.documents)) == 4


def test_without_documents_whole_batches_are_held_out() -> None:
    made = halves(patient(), numbered(10, 2), SAMPLING, training=20)
    assert sequences(made.held_out) == [8, 9, 18, 19]
    assert made.held_out.documents == ()
    with pytest.raises(RefusalError, match="One batch cannot be split"):
        halves(patient(), numbered(1, 8), SAMPLING, training=8)


def test_one_document_is_split_into_stretches_with_a_note() -> None:
    made = halves(patient(), [TEXT * 6], SAMPLING, training=8)
    assert any("1 document" in note for note in made.notes)
    whole = halves(patient(), [TEXT.replace("e ", f"e {n} ") for n in range(12)], SAMPLING, training=8)
    assert not any("document" in note for note in whole.notes)
    assert len(set(whole.held_out.documents)) == 4


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ((0, 0, 0, 1, 1, 2, 3, 3), ({0, 1, 5}, {3, 4, 6})),  # each document once before any document twice
        ((4, 4, 4, 4, 4), ({0, 1, 2}, {3, 4})),  # one document is cut in the middle
        ((), ({0, 2, 4}, {1, 3, 5})),  # unknown documents: every sequence is its own
    ],
)
def test_two_parts_share_no_document(documents: tuple[int, ...], expected: tuple[set[int], set[int]]) -> None:
    count = len(documents) or 8
    ready = Batches.of([{"input_ids": torch.arange(3 * count).reshape(count, 3)}])
    parts = two_parts(replace(ready, documents=documents), most=3)
    numbers = tuple({number for batch in part for number in batch.samples} for part in parts)
    assert numbers == expected
    kept = [row[0] // 3 for batch in parts[0] for row in batch.inputs["input_ids"].tolist()]
    assert set(kept) == expected[0]


def test_one_sequence_cannot_be_split_into_two_parts() -> None:
    with pytest.raises(RefusalError, match="two are needed"):
        two_parts(Batches.of([{"input_ids": torch.ones(1, 3, dtype=torch.long)}]), most=3)
