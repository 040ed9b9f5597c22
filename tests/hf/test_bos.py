"""Whether sequences begin with BOS, and the reason: the caller, the GGUF header or the tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.data.read import read
from attnscope.data.windows import Beginning
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import batches_for, load
from attnscope.hf.loading.one_text import reading
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.targets import beginning_of
from tests.specimens import TEXT, byte_tokenizer, tiny_llama, tiny_t5, write_gguf

WORDS = read(["ab ab a b ab a ab b a ab " * 8])


@pytest.mark.parametrize(
    ("header", "asked", "begins", "why"),
    [
        (True, "auto", True, "the GGUF header asks for it"),
        (False, "auto", False, "the GGUF header asks for none"),
        (None, "auto", False, "the tokenizer does not add it"),
        (True, "no", False, "--bos no"),
        (False, "yes", True, "--bos yes"),
    ],
)
def test_gguf_header_decides_unless_the_caller_does(
    tmp_path: Path, header: bool | None, asked: str, begins: bool, why: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", add_bos=header)
    loaded = load(tmp_path / "tiny.gguf")
    assert (loaded.header.adds_bos, loaded.header.bos) == (header, 0)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("ab")["input_ids"] == [3], "transformers' tokenizer drops what the header says"
    prepared = feed(loaded, WORDS, Sampling(samples=4, max_tokens=16, bos=asked))
    assert prepared.beginning == Beginning(begins, 0, why, "<s>")
    for batch in prepared:
        assert batch.inputs["input_ids"].shape[1] <= 16
        assert (batch.inputs["input_ids"][:, 0] == 0).all() == begins
        assert not (batch.inputs["input_ids"][:, 1:] == 0).any() or "attention_mask" in batch.inputs


def test_windows_with_bos_hold_one_token_less_of_the_text() -> None:
    loaded = in_memory(tiny_llama(), byte_tokenizer(adds_bos=False))
    bare = feed(loaded, read([TEXT]), Sampling(samples=2, max_tokens=63, bos="no"))
    put = feed(loaded, read([TEXT]), Sampling(samples=2, max_tokens=64, bos="yes"))
    assert loaded.positions == 64
    assert torch.equal(put.batches[0].inputs["input_ids"][:, 1:], bare.batches[0].inputs["input_ids"])


def test_reason_names_what_the_tokenizer_does() -> None:
    assert beginning_of(in_memory(tiny_llama(), byte_tokenizer())) == Beginning(
        True, 0, "the tokenizer adds it", "<bos>"
    )
    assert beginning_of(in_memory(tiny_llama(), byte_tokenizer(adds_bos=False))) == Beginning(
        False, 0, "the tokenizer does not add it", "<bos>"
    )
    assert beginning_of(in_memory(tiny_llama())) == Beginning(True, 0, "random tokens are put behind it")


def test_a_tokenizer_that_begins_with_another_token() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = None
    found = beginning_of(in_memory(tiny_t5(), tokenizer))
    assert (found.begins, found.token) == (False, None)
    assert found.why == "the tokenizer has none, and begins with <bos>"


def test_bos_outside_the_vocabulary_is_none() -> None:
    model = tiny_llama()
    model.config.bos_token_id = 4000
    assert beginning_of(in_memory(model)).token is None


def test_yes_without_a_token_is_refused() -> None:
    with pytest.raises(RefusalError, match="has no BOS token"):
        beginning_of(in_memory(tiny_t5()), "yes")
    with pytest.raises(RefusalError, match="`bos=` cannot be 'ja': choose one of auto, yes, no"):
        beginning_of(in_memory(tiny_llama()), "ja")


def test_ready_batches_are_not_changed() -> None:
    loaded = in_memory(tiny_llama(), byte_tokenizer())
    ids = torch.tensor([[0, 5, 6, 7], [0, 8, 9, 4]])
    first = batches_for(loaded, [{"input_ids": ids}], Sampling()).beginning
    assert first == Beginning(True, 0, "the batches were given ready", "<bos>")
    second = batches_for(loaded, [{"input_ids": ids[:, 1:]}], Sampling()).beginning
    assert second is not None
    assert not second.begins
    third = batches_for(loaded, [{"input_ids": ids}, {"input_ids": ids[:, 1:]}], Sampling()).beginning
    assert third is not None
    assert (third.begins, third.why) == (False, "only some of the ready sequences do")
    padded = {"input_ids": torch.tensor([[9, 0, 5, 6]]), "attention_mask": torch.tensor([[0, 1, 1, 1]])}
    left = batches_for(loaded, [padded], Sampling()).beginning
    assert left is not None
    assert left.begins
    with pytest.raises(RefusalError, match="are not changed"):
        batches_for(loaded, [{"input_ids": ids}], Sampling(bos="yes"))


def test_paths_read_the_text_with_bos() -> None:
    adding, bare = (in_memory(tiny_llama(), byte_tokenizer(adds_bos=adds)) for adds in (True, False))
    assert reading(adding, "ab").words == ("<bos>", "a", "b")
    assert reading(adding, "ab", "no").words == ("a", "b")
    assert reading(bare, "ab", "yes").words == ("<bos>", "a", "b")
    assert reading(bare, "ab").beginning == Beginning(False, 0, "the tokenizer does not add it", "<bos>")
    numbers = reading(in_memory(tiny_llama()), "0 5 6")
    assert numbers.beginning == Beginning(True, 0, "the numbers of the tokens were given")
