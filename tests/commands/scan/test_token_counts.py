"""Sequences and tokens of batches given in memory are counted right, whatever their arguments are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

from attnscope.commands.scan.run import scan
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.words import corpus_words
from tests.specimens import tiny_llama, tiny_t5

IDS = torch.randint(0, 257, (4, 32), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([16, 12, 10])


class Renamed(nn.Module):
    """A model whose tokens are called `idx`, as in nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_llama()

    def forward(self, idx: Tensor) -> Any:
        return self.inner(input_ids=idx)


def encoder(batch_first: bool) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def vectors(sequences: int, tokens: int, batch_first: bool) -> Tensor:
    made = torch.randn(sequences, tokens, 16, generator=torch.Generator().manual_seed(1))
    return made if batch_first else made.transpose(0, 1).contiguous()


def counts(model: nn.Module, *batches: dict[str, Tensor]) -> tuple[int, int, tuple[str, ...]]:
    survey = scan(model, list(batches), measures=["entropy"])
    corpus = survey.provenance["corpus"]
    return corpus["sequences"], corpus["tokens"], corpus_words(survey)[1:]


def test_tokens_known_by_name() -> None:
    model = tiny_llama()
    assert counts(model, {"input_ids": IDS})[:2] == (4, 128)
    assert counts(model, {"inputs_embeds": model.get_input_embeddings()(IDS).detach()})[:2] == (4, 128)
    mask = (torch.arange(32) < torch.tensor([[32], [20], [10], [5]])).long()
    assert counts(model, {"input_ids": IDS, "attention_mask": mask})[:2] == (4, 67)
    assert counts(tiny_t5(), {"input_ids": IDS, "decoder_input_ids": IDS[:, :7]})[:2] == (4, 128)


def test_tokens_under_another_name() -> None:
    assert counts(Renamed(), {"idx": IDS}) == (4, 128, ("4 sequences", "128 tokens"))
    assert counts(Renamed(), {"idx": IDS}, {"idx": IDS[:3, :9]})[:2] == (7, 128 + 27)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("sequences", [2, 24])
def test_vectors_with_tokens_or_sequences_first(batch_first: bool, sequences: int) -> None:
    batch = {"src": vectors(sequences, 16, batch_first)}
    assert counts(encoder(batch_first), batch)[:2] == (sequences, 16 * sequences)


@pytest.mark.parametrize("batch_first", [True, False])
def test_padding_is_not_counted(batch_first: bool) -> None:
    padding = torch.arange(16) >= LENGTHS[:, None]
    batch = {"src": vectors(3, 16, batch_first), "src_key_padding_mask": padding}
    assert counts(encoder(batch_first), batch)[:2] == (3, 38)


def test_pictures_are_counted_as_images() -> None:
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
    )
    batch = {"pixel_values": torch.zeros(3, 3, 32, 32)}
    assert counts(ViTModel(config).eval(), batch) == (3, 3, ("3 images",))


def test_the_order_of_axes_changes_no_number() -> None:
    """Sequences of two batches keep their numbers, so peaks point at the same sequence."""

    def survey(batch_first: bool) -> Survey:
        batches = [{"src": vectors(n, 16, batch_first)} for n in (2, 3)]
        return scan(encoder(batch_first), batches, measures=["entropy", "spike"])

    rows, columns = survey(True), survey(False)
    assert rows.cells.keys() == columns.cells.keys()
    for key, cell in rows.cells.items():
        other = columns.cells[key]
        torch.testing.assert_close(torch.tensor(cell.moments.mean), torch.tensor(other.moments.mean))
        assert cell.moments.count.tolist() == other.moments.count.tolist()
        if key.measure == "spike":
            assert cell.peak.places() == other.peak.places()


def test_resumed_scan_of_tokens_first_equals_unbroken_one(tmp_path: Any) -> None:
    batches = [{"src": vectors(n, 16, batch_first=False)} for n in (2, 3, 4)]
    whole = scan(encoder(False), batches, measures=["entropy"])
    partial = tmp_path / "survey.partial.json"

    def stop(stage: str, done: int, total: int, tokens: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan(encoder(False), batches, measures=["entropy"], checkpoint=partial, progress=stop)
    assert Survey.load(partial).provenance["corpus"]["sequences"] == 5
    again = scan(encoder(False), batches, measures=["entropy"], checkpoint=partial, resume=True)
    assert again.cells == whole.cells
    assert again.provenance["corpus"] == whole.provenance["corpus"]
