"""The training script on a toy corpus: what it reads, what it holds out, and that a break changes nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[2] / "tools" / "train_pocket.py"
PROSE = "\n\n".join(f"{n} green bottles hanging on the wall, and {n + 1} more." for n in range(120)) + "\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_pocket", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_pocket"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def toy(script: ModuleType):
    return script.Params(
        vocab=300,
        width=16,
        layers=2,
        heads=2,
        hidden=24,
        context=16,
        steps=8,
        batch=2,
        warmup=3,
        horizon=10,
        cooldown=4,
        threads=1,
    )


def test_a_book_is_read_without_heading_notice_and_line_breaks(script: ModuleType, tmp_path: Path) -> None:
    line = "This line of prose is long enough that the paragraph goes on"
    raw = f"[A Title 1800]\r\n\r\n\r\n\r\n{line}\r\nhere.   \r\n\r\nA short verse,\r\nand its rhyme.\r\n"
    notice = "\r\nEnd of Project Gutenberg's A Title\r\n\r\nSmall print.\r\n"
    (tmp_path / "book.txt").write_bytes((raw + notice).encode("latin-1"))
    title, text = script.read_book(tmp_path / "book.txt")
    assert title == "A Title 1800"
    assert text == f"{line} here.\n\nA short verse,\nand its rhyme.\n"


def test_held_out_part_is_the_end_of_the_book_from_a_paragraph(script: ModuleType) -> None:
    train, held = script.split(PROSE, 0.2)
    assert train + held == PROSE
    assert train.endswith("\n\n")
    assert 0.15 * len(PROSE) < len(held) <= 0.2 * len(PROSE)


def test_a_book_without_paragraphs_is_split_too(script: ModuleType) -> None:
    train, held = script.split("x" * 1000, 0.1)
    assert (len(train), len(held)) == (902, 98)


def test_batches_depend_on_seed_and_step_only(script: ModuleType, toy) -> None:
    stream = torch.arange(2, 300)
    first = script.training_batch(stream, 5, toy)
    assert torch.equal(first, script.training_batch(stream, 5, toy))
    assert not torch.equal(first, script.training_batch(stream, 6, toy))
    assert (first[:, 0] == 0).all()
    assert (first[:, 2:] - first[:, 1:-1] == 1).all()


def test_the_rate_rises_to_its_peak_and_falls_to_its_last_value(script: ModuleType) -> None:
    params = script.Params()
    rates = [script.rate(step, params) for step in range(params.steps + 1)]
    assert rates[params.warmup - 1] == rates[params.warmup] == max(rates) == params.peak_rate
    assert rates[: params.warmup] == sorted(rates[: params.warmup])
    assert rates[params.warmup :] == sorted(rates[params.warmup :], reverse=True)
    assert rates[-1] == 0


def test_without_cooldown_the_rate_is_a_cosine(script: ModuleType) -> None:
    params = script.Params(steps=1000, horizon=1000, warmup=100, cooldown=1)
    middle = (params.peak_rate + params.last_rate) / 2
    assert script.rate(550, params) == pytest.approx(middle)
    assert script.rate(999, params) == pytest.approx(params.last_rate, rel=0.02)


def test_an_interrupted_run_ends_in_the_bits_of_an_unbroken_one(script: ModuleType, toy, tmp_path: Path) -> None:
    train_text, held_text = script.split(PROSE, 0.2)
    tokenizer = script.learn_tokenizer([train_text], toy)
    stream, held = script.encode(tokenizer, [train_text]), script.encode(tokenizer, [held_text])
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    script.train(stream, held, toy, whole, toy.steps)
    script.train(stream, held, toy, broken, 5)
    half = load_file(broken / "checkpoint.safetensors")
    script.train(stream, held, toy, broken, toy.steps)
    left, right = (load_file(folder / "checkpoint.safetensors") for folder in (whole, broken))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert not torch.equal(half["model.model.embed_tokens.weight"], right["model.model.embed_tokens.weight"])

    with pytest.raises(SystemExit, match="another run"):
        script.train(stream[:-1], held, toy, broken, toy.steps)


def test_main_writes_a_folder_and_a_card_that_fit_each_other(
    script: ModuleType, toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "bottles.txt").write_text(f"[Green Bottles]\n\n{PROSE}")
    monkeypatch.setattr(script, "Params", lambda: toy)
    folders = {f"--{name}": str(tmp_path / name) for name in ("run", "out")} | {"--corpus": str(tmp_path / "books")}
    monkeypatch.setattr(sys, "argv", ["train_pocket.py", *(word for pair in folders.items() for word in pair)])
    script.main()
    out = tmp_path / "out"
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "MODEL_CARD.md"}
    assert {path.name for path in out.iterdir()} == names
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    card = (out / "MODEL_CARD.md").read_text()
    assert "- Green Bottles\n" in card
    assert "8 steps of 2 windows" in card
    assert "240\ntokens seen" in card
