"""The training script on a toy corpus: what it reads, what it holds out, and that resuming changes nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tools.pocket.__main__ as command
from tools.pocket.books import encode, learn_tokenizer, read_book, split
from tools.pocket.lessons import rate, training_batch
from tools.pocket.looking import looks_elsewhere
from tools.pocket.model import build
from tools.pocket.params import Params
from tools.pocket.training import train

PROSE = "\n\n".join(f"{n} green bottles hanging on the wall, and {n + 1} more." for n in range(120)) + "\n"
TOY = Params(
    vocab=300,
    width=16,
    layers=2,
    heads=2,
    hidden=24,
    context=32,
    school=3,
    school_context=28,
    school_warmup=2,
    steps=8,
    batch=2,
    warmup=3,
    horizon=10,
    cooldown=4,
    looking_from=4,
    threads=1,
)
STREAM = torch.arange(2, 300)


def test_a_book_is_read_without_heading_notice_and_line_breaks(tmp_path: Path) -> None:
    line = "This line of prose is long enough that the paragraph goes on"
    raw = f"[A Title 1800]\r\n\r\n\r\n\r\n{line}\r\nhere.   \r\n\r\nA short verse,\r\nand its rhyme.\r\n"
    notice = "\r\nEnd of Project Gutenberg's A Title\r\n\r\nSmall print.\r\n"
    (tmp_path / "book.txt").write_bytes((raw + notice).encode("latin-1"))
    title, text = read_book(tmp_path / "book.txt")
    assert title == "A Title 1800"
    assert text == f"{line} here.\n\nA short verse,\nand its rhyme.\n"


def test_held_out_part_is_the_end_of_the_book_from_a_paragraph() -> None:
    train, held = split(PROSE, 0.2)
    assert train + held == PROSE
    assert train.endswith("\n\n")
    assert 0.15 * len(PROSE) < len(held) <= 0.2 * len(PROSE)


def test_a_book_without_paragraphs_is_split_too() -> None:
    train, held = split("x" * 1000, 0.1)
    assert (len(train), len(held)) == (902, 98)


def test_batches_depend_on_seed_and_step_only() -> None:
    first = training_batch(STREAM, 5, TOY)
    assert torch.equal(first, training_batch(STREAM, 5, TOY))
    assert not torch.equal(first, training_batch(STREAM, 6, TOY))
    assert first.shape == (TOY.batch, TOY.context)
    assert (first[:, 0] == 0).all()


def _period(row: torch.Tensor) -> int:
    """Return the smallest period of a row, or its length if it does not repeat."""
    return next((n for n in range(1, len(row)) if torch.equal(row[n:], row[:-n])), len(row))


def test_all_windows_repeat_in_school_and_the_requested_share_afterwards() -> None:
    """Counts stay within five standard deviations of a binomial: 60 and 37 for 600 draws at .6 and .1."""
    stream = torch.arange(2, 1002)
    many = replace(TOY, vocab=100_000, batch=600, school=1, school_context=128, context=128)
    school, later = training_batch(stream, 0, many)[:, 1:], training_batch(stream, 1, many)[:, 1:]
    periods = [_period(row) for row in school]
    assert min(periods) == many.shortest
    assert 0.3 * 127 < max(periods) <= 127 / 3
    assert abs(sum(not _in_order(row) for row in school) - 360) <= 60
    repeating = [row for row in later if _period(row) < len(row)]
    assert abs(sum(not _in_order(row) for row in repeating) - 60) <= 37
    assert abs(sum(_in_order(row) for row in repeating) - 60) <= 37
    assert all(_in_order(row) for row in later if _period(row) == len(row))
    foreign = [row for row in school if row.max() > 1001]  # any tokens of the vocabulary, of which the stream has few
    assert abs(len(foreign) - 180) <= 57  # half of the 360; at .3


def _in_order(row: torch.Tensor) -> bool:
    """Return whether the first words are in the order of the stream, which counts up."""
    return bool((row[1:8] - row[:7] == 1).all())


def test_learning_rate_is_low_in_school_then_peaks_and_decays_to_zero() -> None:
    params = Params()
    rates = [rate(step, params) for step in range(params.steps + 1)]
    school, peak = rates[: params.school], params.school + params.warmup
    assert school == sorted(school)
    assert school[-1] == params.school_rate
    assert rates[params.school : peak] == sorted(rates[params.school : peak])
    assert rates[peak - 1] == pytest.approx(params.peak_rate)
    assert max(rates) == pytest.approx(params.peak_rate)
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == 0  # after the last step; the last step has one part in 2,000 of the cosine
    assert 0 < rates[-2] < 1e-3 * params.peak_rate


def test_learning_rate_without_school_and_cooldown_is_a_cosine() -> None:
    params = Params(school=0, steps=1000, horizon=1000, warmup=100, cooldown=1, peak_rate=3e-3)
    middle = (params.peak_rate + params.last_rate) / 2
    assert rate(550, params) == pytest.approx(middle)
    # One step of 900 before the end of half a turn: (peak / last - 1) (1 - cos(pi / 900)) / 2 = 3e-4 above it.
    assert rate(999, params) == pytest.approx(params.last_rate, rel=4e-4)


@torch.no_grad()
def test_one_head_starts_as_a_previous_token_head() -> None:
    """With keys of equal norm the weight on the previous token is .97. Norms of tokens differ by 6%, which is 3 of its
    48 logits, so that .76 is measured."""
    params = Params()
    model = build(params).eval()
    model.set_attn_implementation("eager")
    tokens = torch.randint(2, params.vocab, (4, params.context), generator=torch.Generator().manual_seed(0))
    attentions = model(input_ids=tokens, output_attentions=True).attentions
    back = torch.stack([one.diagonal(offset=-1, dim1=2, dim2=3).mean((0, 2)) for one in attentions])
    assert back[0, 0] > 0.6
    back[0, 0] = 0
    assert back.max() < 0.1


def test_sink_penalty_is_the_attention_off_the_first_token() -> None:
    """Means of 62 numbers of order 1 in float32, added to 2 per block: 62 units of rounding, 62 * 2^-24 * 2 < 1e-5."""
    model = build(TOY)
    before = model.config._attn_implementation
    tokens = torch.randint(2, TOY.vocab, (2, TOY.context), generator=torch.Generator().manual_seed(0))
    with looks_elsewhere(model) as looks:
        attentions = model(input_ids=tokens, output_attentions=True).attentions
        with torch.no_grad():
            model(input_ids=tokens)  # no penalty in evaluation
    assert model.config._attn_implementation == before
    assert len(looks) == TOY.layers
    for paid, matrix in zip(looks, attentions, strict=True):
        rest = matrix[:, :, 1:, 0].double()
        assert paid.item() == pytest.approx(TOY.heads - rest.mean().item() * TOY.heads, abs=1e-5)
    looks[0].backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0
    model(input_ids=tokens)
    assert len(looks) == TOY.layers  # the hooks are removed


def test_resumed_run_equals_unbroken_run_to_the_bit(tmp_path: Path) -> None:
    train_text, held_text = split(PROSE, 0.2)
    tokenizer = learn_tokenizer([train_text], TOY)
    stream, held = encode(tokenizer, [train_text]), encode(tokenizer, [held_text])
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    train(stream, held, TOY, whole, TOY.steps)
    train(stream, held, TOY, broken, 5)
    half = load_file(broken / "checkpoint.safetensors")
    train(stream, held, TOY, broken, TOY.steps)
    left, right = (load_file(folder / "checkpoint.safetensors") for folder in (whole, broken))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert not torch.equal(half["model.model.embed_tokens.weight"], right["model.model.embed_tokens.weight"])

    with pytest.raises(SystemExit, match="another run"):
        train(stream[:-1], held, TOY, broken, TOY.steps)


def test_main_writes_a_folder_and_a_matching_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "bottles.txt").write_text(f"[Green Bottles]\n\n{PROSE}")
    monkeypatch.setattr(command, "Params", lambda: TOY)
    folders = {f"--{name}": str(tmp_path / name) for name in ("run", "out")} | {"--corpus": str(tmp_path / "books")}
    monkeypatch.setattr(sys, "argv", ["pocket", *(word for pair in folders.items() for word in pair)])
    command.main()
    out = tmp_path / "out"
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "MODEL_CARD.md"}
    assert {path.name for path in out.iterdir()} == names
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    card = (out / "MODEL_CARD.md").read_text()
    assert "- Green Bottles\n" in card
    assert "8 steps of 2 windows" in card
    assert "472 tokens" in card  # 2 rows: 3 steps of 27 and 5 of 31
    assert card.count("found): ") == 4  # whether a scan finds each of the intended phenomena
