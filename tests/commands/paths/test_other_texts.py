"""The texts whose outputs replace a head: the caller's, the embedded book, or texts of the model's own kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.run import paths
from attnscope.core.errors import RefusalError
from tests.specimens import byte_tokenizer, tiny_llama

QUICK: dict[str, Any] = {"draws": 0, "mlp": False, "top": 1}
NUMBERS = "5 17 3 5"


def reference_of(report: PathReport) -> str:
    assert report.effects is not None, report.notes
    return report.effects.reference


def bert(vocabulary: int) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    return BertForMaskedLM(
        BertConfig(vocab_size=vocabulary, intermediate_size=48, max_position_embeddings=40, **sizes)
    ).eval()


def of_dna() -> Any:
    """Return a GPT-2 that finds A, C, G and T likely and everything else impossible."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=257, n_embd=24, n_layer=2, n_head=3, n_positions=40, tie_word_embeddings=False, bos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(1.0)
        model.lm_head.weight[byte_tokenizer()("ACGT")["input_ids"][1:]] += 1.0
    return model


def letters(known: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single letters that knows only some."""
    vocabulary = {"[UNK]": 0, **{letter: i + 1 for i, letter in enumerate(known)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


class Dropping:
    """A tokenizer that knows the letters of molecules, and leaves out all others."""

    all_special_ids = ()
    known = "CONcon()=1"

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        return {"input_ids": [self.known.index(letter) for letter in text if letter in self.known]}

    def convert_ids_to_tokens(self, number: int) -> str:
        return self.known[int(number)]

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join(self.known[int(number)] for number in ids)


def test_a_causal_model_without_a_tokenizer_writes_the_other_texts() -> None:
    report = paths(tiny_llama(), NUMBERS, **QUICK)
    assert reference_of(report) == "32 sequences of 4 tokens that the model wrote itself"
    assert any("because the model has no tokenizer" in note and "`reference=`" in note for note in report.notes)
    assert paths(tiny_llama(), NUMBERS, **QUICK).effects == report.effects  # drawn with a seed
    assert paths(tiny_llama(), NUMBERS, seed=1, **QUICK).effects != report.effects


def test_another_model_without_a_tokenizer_gets_other_orders_of_the_text() -> None:
    assert reference_of(paths(bert(257), NUMBERS, **QUICK)) == "32 other orders of the 4 tokens of the text"


def test_a_model_of_english_gets_the_book_without_a_note() -> None:
    report = paths("pocket", "The dog chased its own tail", **QUICK)
    assert "from the embedded book" in reference_of(report)
    assert not any("English" in note for note in report.notes)


def test_a_model_that_english_surprises_writes_the_other_texts() -> None:
    report = paths(of_dna(), "ACGTACGGTTAC", tokenizer=byte_tokenizer(), **QUICK)
    assert reference_of(report) == "32 sequences of 13 tokens that the model wrote itself"
    assert any("because its loss on them is" in note for note in report.notes)
    english = paths(of_dna(), "the dog and the cat", tokenizer=byte_tokenizer(), **QUICK)  # as strange as the book
    assert "from the embedded book" in reference_of(english)


def test_unknown_tokens_and_dropped_letters_show_that_a_model_does_not_read_english() -> None:
    unknown = paths(bert(9), "ACGTACGGTTAC", tokenizer=letters("ACGTNacg"), **QUICK)
    assert reference_of(unknown) == "32 other orders of the 12 tokens of the text"
    assert any("of their tokens are unknown to its tokenizer" in note for note in unknown.notes)
    dropped = paths(bert(10), "CC(=O)NC1CC(=O)", tokenizer=Dropping(), **QUICK)
    assert reference_of(dropped) == "32 other orders of the 15 tokens of the text"
    assert any("its tokenizer drops" in note and "of their letters" in note for note in dropped.notes)


def mean_over(model: Any, rows: list[list[int]], block: int) -> Tensor:
    """Return the mean input of an output projection over all tokens of some texts but the first of each."""
    seen: list[Tensor] = []
    projection = model.model.layers[block].self_attn.o_proj
    handle = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, 1:]))
    with torch.no_grad():
        for row in rows:
            model(input_ids=torch.tensor([row]))
    handle.remove()
    return torch.cat(seen).mean(0)


@pytest.mark.parametrize("texts", [["a cat sat on", "two dogs ran"], ["the first one", "a 2nd", "some third text"]])
def test_means_are_those_over_the_texts_of_the_caller(texts: list[str]) -> None:
    """Compare with plain hooks. Texts may be shorter than the text: here they have 6 to 16 tokens with BOS."""
    text = "the dog and the"
    report = paths(tiny_llama(), text, tokenizer=byte_tokenizer(), reference=texts, **QUICK)
    assert reference_of(report) == f"{len(texts)} windows of up to 16 tokens from texts given in Python"
    assert report.effects is not None
    model: Any = tiny_llama().double()
    rows = [byte_tokenizer()(one)["input_ids"] for one in texts]
    ids = torch.tensor([byte_tokenizer()(text)["input_ids"]])
    with torch.no_grad():
        entry = int(model(input_ids=ids).logits[0, -1].argmax())
    for one in report.effects.heads:
        first = model.model.layers[one.block].self_attn.o_proj
        mine = slice(8 * one.head, 8 * one.head + 8)
        mean = mean_over(model, rows, one.block)[mine]

        def put(_: Any, args: tuple[Tensor, ...], mine: slice = mine, mean: Tensor = mean) -> tuple[Tensor, ...]:
            changed = args[0].clone()
            changed[:, 1:, mine] = mean  # BOS is the first token of all texts, and its output is the same in all
            return (changed,)

        handle = first.register_forward_pre_hook(put)
        with torch.no_grad():
            left = model(input_ids=ids).logits[0, -1]
        handle.remove()
        assert one.probability == pytest.approx(float(left.softmax(-1)[entry]), abs=1e-6)


def test_texts_of_the_caller_may_be_a_file_of_token_numbers(tmp_path: Path) -> None:
    file = tmp_path / "microbes.txt"
    file.write_text("5 17 3 9 11\n7 2 4 4 8 1\n\n9 9 1\n")
    report = paths(tiny_llama(), NUMBERS, reference=file, **QUICK)
    assert reference_of(report) == f"3 windows of up to 4 tokens from {file}"
    assert report.notes == ()


def test_a_reference_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    words: dict[str, Any] = {"tokenizer": byte_tokenizer(), **QUICK}
    for effects in ("zero", None):
        with pytest.raises(RefusalError, match="`reference=` gives the texts"):
            paths(tiny_llama(), "the dog", reference=["a cat"], effects=effects, **words)
    with pytest.raises(RefusalError, match="too few tokens"):
        paths(tiny_llama(), "the dog", reference=["a c"], **words)
    with pytest.raises(RefusalError, match="needs 4 other texts of 8 tokens, and the reference has 1"):
        paths(tiny_llama(), "the dog", reference=["the cat and", "short"][:1], effects="resample", **words)
    with pytest.raises(RefusalError, match="There is no corpus file"):
        paths(tiny_llama(), "the dog", reference=tmp_path / "none.txt", **words)
