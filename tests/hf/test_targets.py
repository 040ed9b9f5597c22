"""A decoder reads the targets of pairs, the output of the model, or the source, and a note says which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MarianConfig, MarianMTModel, T5Model

import attnscope
from attnscope.commands.paths.run import paths
from attnscope.commands.scan.run import scan
from attnscope.core.errors import RefusalError
from attnscope.data.read import read
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import batches_for, load
from attnscope.hf.loading.one_text import reading
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.targets import LONGEST
from tests.specimens import TEXT, byte_tokenizer, tiny_llama, tiny_t5

PAIRS = [("the quick fox", "le renard"), ("a lazy dog", "un chien paresseux"), ("so it is", "c'est ainsi")]


def tiny_marian() -> MarianMTModel:
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=258,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=80,
        decoder_start_token_id=257,
        pad_token_id=257,
        eos_token_id=0,
        forced_eos_token_id=None,
        init_std=0.5,
    )
    return MarianMTModel(config).eval()


def greedy(model: Any, ids: list[int], steps: int, end: int | None) -> list[int]:
    """Generate greedily without a cache, and at least two tokens."""
    written: list[int] = []
    start = model.config.decoder_start_token_id
    with torch.no_grad():
        for step in range(steps):
            logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[start, *written]])).logits
            row = logits[0, -1]
            if end is not None and step < 1:
                row[end] = -torch.inf
            written.append(int(row.argmax()))
            if written[-1] == end:
                break
    return written


@pytest.mark.parametrize("make", [tiny_t5, tiny_marian])
def test_the_decoder_reads_what_the_model_writes(make: Any) -> None:
    model = make()
    loaded = in_memory(model, byte_tokenizer())
    prepared = feed(loaded, read([TEXT]), Sampling(samples=3, max_tokens=12, batch_size=1))
    assert prepared.notes == (
        "The decoder read the output of the model for each text (greedy, at most 12 tokens), shifted by one token.",
    )
    end = model.generation_config.eos_token_id
    for batch in prepared:
        expected = greedy(model, batch.inputs["input_ids"][0].tolist(), 12, end)
        found = batch.inputs["decoder_input_ids"][0].tolist()
        assert found == [model.config.decoder_start_token_id, *expected[:-1]]


def test_generated_targets_are_bounded_and_reproducible() -> None:
    loaded = in_memory(tiny_t5(), byte_tokenizer())
    sampling = Sampling(samples=2, max_tokens=200)
    first, again = (feed(loaded, read([TEXT]), sampling) for _ in range(2))
    assert first.fingerprint() == again.fingerprint()
    assert all(batch.inputs["decoder_input_ids"].shape[1] <= LONGEST for batch in first)
    assert first.batches[0].inputs["input_ids"].shape[1] > LONGEST


def test_scan_notes_the_targets_and_restores_the_model() -> None:
    model = tiny_marian().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chance = torch.random.get_rng_state()
    survey = scan(model, [TEXT], tokenizer=byte_tokenizer(), samples=2, max_tokens=16)
    assert torch.equal(torch.random.get_rng_state(), chance)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert "the output of the model" in survey.provenance["notes"][0]
    ids = torch.tensor([[3, 4, 5]])
    model(input_ids=ids, decoder_input_ids=ids).logits.sum().backward()  # it caches no inference tensors


def test_pairs_are_read_whole() -> None:
    tokenizer = byte_tokenizer()
    loaded = in_memory(tiny_t5(), tokenizer)
    prepared = batches_for(loaded, PAIRS, Sampling())
    assert prepared.notes == ("The decoder read the targets of the pairs, shifted by one token.",)
    rows = {}
    for batch in prepared:
        assert batch.mask is not None
        assert batch.decoder_mask is not None
        for row, sample in enumerate(batch.samples):
            ids, written = batch.inputs["input_ids"][row], batch.inputs["decoder_input_ids"][row]
            rows[sample] = (ids[batch.mask[row]].tolist(), written[batch.decoder_mask[row]].tolist())
    for number, (source, target) in enumerate(PAIRS):
        expected = tokenizer(source)["input_ids"], [0, *tokenizer(target)["input_ids"][:-1]]
        assert rows[number] == expected


def test_a_file_of_pairs(tmp_path: Path) -> None:
    lines = [json.dumps({"source": source, "target": target}) for source, target in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    found = read(tmp_path / "pairs.jsonl")
    assert found.documents == tuple(source for source, _ in PAIRS)
    assert found.targets == tuple(target for _, target in PAIRS)
    assert found.sha256 == read(PAIRS).sha256
    assert read(tmp_path / "pairs.jsonl", field="target").documents == found.targets
    survey = scan(tiny_t5(), tmp_path / "pairs.jsonl", tokenizer=byte_tokenizer())
    assert survey.provenance["corpus"]["sequences"] == 3
    with pytest.raises(RefusalError, match="`field='source'`"):
        scan(tiny_llama(), tmp_path / "pairs.jsonl", tokenizer=byte_tokenizer())
    (tmp_path / "mixed.jsonl").write_text(lines[0] + '\n{"text": "alone"}')
    with pytest.raises(RefusalError, match="pairs and single texts"):
        read(tmp_path / "mixed.jsonl")


def test_pairs_that_do_not_fit_are_left_out_and_counted() -> None:
    loaded = in_memory(tiny_t5(), byte_tokenizer())
    prepared = batches_for(loaded, [*PAIRS, ("x" * 40, "y")], Sampling(max_tokens=20))
    assert prepared.samples == 3
    assert prepared.notes[1] == "1 pair left out: one side has more than 20 tokens, or fewer than 2."
    with pytest.raises(RefusalError, match="None of the 1 pair"):
        batches_for(loaded, [("x" * 40, "y" * 40)], Sampling(max_tokens=20))


def test_padding_of_pairs_changes_no_number() -> None:
    """Three pairs give the same numbers in one batch and alone."""
    model, tokenizer = tiny_t5(), byte_tokenizer()
    whole = scan(model, PAIRS, tokenizer=tokenizer, measures="entropy")
    parts = [
        scan(
            model,
            [
                {
                    "input_ids": torch.tensor([tokenizer(source)["input_ids"]]),
                    "decoder_input_ids": torch.tensor([[0, *tokenizer(target)["input_ids"][:-1]]]),
                }
            ],
            measures="entropy",
        )
        for source, target in PAIRS
    ]
    for stack, site in (("encoder", "self"), ("decoder", "self"), ("decoder", "cross")):
        means = sum(torch.tensor(part.values("entropy", stack=stack, site=site)) for part in parts) / len(parts)
        torch.testing.assert_close(
            torch.tensor(whole.values("entropy", stack=stack, site=site)), means, rtol=0, atol=1e-6
        )


def test_decoder_reads_the_source_if_the_model_cannot_generate(tmp_path: Path) -> None:
    tiny_t5().config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    drawn = feed(load(tmp_path, random_init=True), read([TEXT]), Sampling(samples=2, max_tokens=16))
    assert "read the source, shifted by one token, because random weights" in drawn.notes[0]
    body = feed(in_memory(T5Model(tiny_t5().config).eval(), byte_tokenizer()), read([TEXT]), Sampling(samples=2))
    assert "because T5Model cannot generate text" in body.notes[0]
    for batch in (*drawn, *body):
        assert torch.equal(batch.inputs["decoder_input_ids"][:, 1:], batch.inputs["input_ids"][:, :-1])


def test_paths_note_what_the_decoder_read() -> None:
    loaded = in_memory(tiny_t5(), byte_tokenizer())
    own = reading(loaded, "the fox")
    assert "the output of the model" in own.notes[0]
    assert len(own.words) <= LONGEST
    pair = reading(loaded, ("the fox", "le renard"))
    assert pair.notes == ("The decoder read the targets of the pairs, shifted by one token.",)
    assert "".join(pair.words[2:]) == "le renar"
    ids = torch.tensor([[5, 6, 7]])
    given = paths(tiny_t5(), {"input_ids": ids, "decoder_input_ids": ids[:, :2]}, draws=0, mlp=False, top=1)
    assert not any("same text" in note or "the output of the model" in note for note in given.notes)
    assert any("decoder_input_ids that were given" in note for note in given.notes)
    with pytest.raises(RefusalError, match="no decoder to read a target"):
        reading(in_memory(tiny_llama(), byte_tokenizer()), ("a", "b"))


def test_collapse_notes_what_the_decoder_read() -> None:
    found = attnscope.collapse(
        tiny_t5(), [TEXT], tokenizer=byte_tokenizer(), samples=2, max_tokens=12, variants="whole", bounds=False
    )
    assert any("the output of the model" in note for note in found.notes)


def test_a_shortened_batch_cuts_both_sides() -> None:
    loaded = in_memory(tiny_t5(), byte_tokenizer())
    batch = batches_for(loaded, PAIRS, Sampling(batch_size=3)).batches[-1]
    short = batch.shortened(4)
    assert {tensor.shape[1] for tensor in short.inputs.values()} == {4}
    assert short.decoder_mask is not None
    assert short.decoder_mask.shape[1] == 4
    assert batch.shortened(400) is batch
