"""The shipped model pocket loads without warnings, agrees with its card, and predicts English."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import attnscope
from tools import fetch_models
from tools.pocket.books import encode, read_book, split
from tools.pocket.params import Params
from tools.pocket.training import evaluate

FOLDER = Path(attnscope.__file__).parent / "data" / "pocket"

# The opening of Pride and Prejudice (Jane Austen, 1813), a book that is not in the training data.
PASSAGE = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "
    "of a wife.\n\n"
    "However little known the feelings or views of such a man may be on his first entering a neighbourhood, this "
    "truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful "
    "property of some one or other of their daughters.\n\n"
    '"My dear Mr. Bennet," said his lady to him one day, "have you heard that Netherfield Park is let at last?"'
    "\n\nMr. Bennet replied that he had not."
)


class Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def transformers_log() -> Iterator[list[str]]:
    recorder, logger = Recorder(), logging.getLogger("transformers")
    logger.addHandler(recorder)
    yield recorder.lines
    logger.removeHandler(recorder)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def card() -> str:
    return (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")


@torch.no_grad()
def nats_per_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> float:
    ids = tokenizer(text, return_tensors="pt").input_ids
    return model(input_ids=ids, labels=ids).loss.item()


def test_pocket_loads_without_warnings_or_missing_weights(transformers_log: list[str]) -> None:
    AutoTokenizer.from_pretrained(FOLDER)
    model, found = AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not any(found.values())
    assert transformers_log == []
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.dtype == torch.float32
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_pocket_is_small(model: PreTrainedModel) -> None:
    assert 1_000_000 <= model.num_parameters() <= 2_000_000
    assert (FOLDER / "model.safetensors").stat().st_size <= 5_000_000
    assert all(weight.isfinite().all() for weight in model.parameters())


def test_card_describes_these_weights(card: str, model: PreTrainedModel) -> None:
    assert hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest() in card
    assert f"{model.num_parameters():,} parameters in float32" in card
    written = re.search(r"All parameters: `(\{.*\})`", card)
    assert written is not None
    params = json.loads(written[1])
    config = model.config
    told = [params[name] for name in ("vocab", "width", "layers", "heads", "hidden", "context")]
    assert told == [
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings,
    ]
    for word in (
        "Apache-2.0",
        "public domain",
        "Intended use",
        "held-out part",
        "## Sample",
        f"seed {params['seed']}",
    ):
        assert word in card


@pytest.mark.parametrize("text", ["", "Call me Ishmael.", "  two spaces", "\n\n", "naïve — 日本語 🙂"])
def test_bos_is_first_and_only_first(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.bos_token_id not in ids[1:]


def test_bos_is_first_in_padded_batches_and_pairs(tokenizer: PreTrainedTokenizerBase) -> None:
    batch = tokenizer(["one", "one two three four"], padding=True, return_tensors="pt")
    assert (batch.input_ids[:, 0] == tokenizer.bos_token_id).all()
    assert batch.attention_mask[0].tolist() == sorted(batch.attention_mask[0].tolist(), reverse=True)
    assert tokenizer("one", "two").input_ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer("one", "two").input_ids[0] == tokenizer.bos_token_id


@given(
    st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "<bos>" not in text and "<pad>" not in text)
)
def test_any_text_comes_back_unchanged(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids[1:], clean_up_tokenization_spaces=False) == text


def test_pocket_predicts_english(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Measured: 3.118 nats per token trained, 7.110 untrained; a uniform guess has log(1024) = 6.931."""
    uniform = math.log(model.config.vocab_size)
    torch.manual_seed(0)
    untrained = AutoModelForCausalLM.from_config(model.config).eval()
    trained_loss = nats_per_token(model, tokenizer, PASSAGE)
    assert trained_loss < 3.13
    assert trained_loss < 0.5 * uniform
    assert nats_per_token(untrained, tokenizer, PASSAGE) > 0.98 * uniform


def test_pocket_depends_on_word_order(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Measured: 3.254 nats per token forwards, 5.032 backwards."""
    words = PASSAGE.split()
    backwards = " ".join(reversed(words))
    assert nats_per_token(model, tokenizer, " ".join(words)) + 1.5 < nats_per_token(model, tokenizer, backwards)


@pytest.fixture(scope="module")
def survey() -> attnscope.Survey:
    return attnscope.scan("pocket", samples=8)


def test_scan_of_pocket_finds_sinks_and_a_spike(survey: attnscope.Survey) -> None:
    """With 8 or 32 sequences: sinks in 20 of 24 heads, and a spike in channel 102 of token 0 from block 1 on."""
    found = {one.kind: one for one in attnscope.diagnose(survey)}
    assert len(found["sink"].heads) >= 18
    assert found["massive_activation"].layers == (1,)
    assert "channel 102, token 0" in found["massive_activation"].sentence
    assert found["previous_token_heads"].heads == ((0, 0),)  # the head that training started as a previous-token head


def test_pocket_has_induction_heads_on_repeated_tokens() -> None:
    twice = attnscope.scan("pocket", "repeated", samples=8, measures="induction")
    assert "induction_heads" in {found.kind for found in attnscope.diagnose(twice)}


def test_random_weights_have_no_sinks_and_no_spike() -> None:
    usual = attnscope.scan("pocket", samples=4, random_init=True)
    twice = attnscope.scan("pocket", "repeated", samples=4, random_init=True, measures="induction")
    wanted = {"sink", "massive_activation", "previous_token_heads", "induction_heads"}
    assert not wanted & {found.kind for one in (usual, twice) for found in attnscope.diagnose(one)}


def test_pocket_has_fewer_bits_per_byte_than_its_predecessor(card: str) -> None:
    """An earlier pocket, trained on text alone for 2,600 steps, had 1.748 bits per byte."""
    written = re.search(r"held-out part, all windows \| [0-9.]+ \| ([0-9.]+)", card)
    assert written is not None
    assert float(written[1]) < 1.748


@pytest.mark.real
@pytest.mark.thorough
def test_held_out_loss_equals_that_of_the_card(
    card: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = [read_book(path)[1] for path in sorted(fetch_models.path("gutenberg").glob("*.txt"))]
    held = encode(tokenizer, [split(text, Params().held_out)[1] for text in texts])
    written = re.search(r"held-out part, all windows \| ([0-9.]+)", card)
    assert written is not None
    told = float(written[1])
    assert evaluate(model, held, model.config.max_position_embeddings, len(held)) == pytest.approx(told, abs=6e-4)
