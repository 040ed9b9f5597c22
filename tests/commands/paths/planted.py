"""Small GPT-2 models with heads set by hand, among heads and MLPs with small random weights.

The stream has four parts of 16 channels: the token, its position, a note that heads leave for later heads, and the
answer, which alone the output reads. A planted head reads one part with its query, one with its key, copies the token
that it looks at into the note or into the answer, and is otherwise empty.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

SIZE = 16  # tokens, positions, and the width of a head
HEADS, BLOCKS = 4, 3
PARTS = {"token": 0, "position": 1, "note": 2, "answer": 3}
SHARP = 2.0  # factor on queries: logits of about 15 between equal one-hot vectors
NORMED = 5.57  # a one-hot part behind the norm of a token with two of them


def empty_model(seed: int, noise: float) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=SIZE,
        n_positions=SIZE,
        n_embd=4 * SIZE,
        n_layer=BLOCKS,
        n_head=HEADS,
        n_inner=32,
        tie_word_embeddings=False,
        initializer_range=noise,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.wte.weight.copy_(_into("token"))
        model.transformer.wpe.weight.copy_(_into("position"))
        model.lm_head.weight.copy_(_into("answer"))
    return model


def _into(part: str) -> Tensor:
    """Return a matrix that writes 16 numbers into a part of the stream."""
    made = torch.zeros(SIZE, 4 * SIZE)
    first = SIZE * PARTS[part]
    made[:, first : first + SIZE] = torch.eye(SIZE)
    return made


def plant(
    model: GPT2LMHeadModel,
    place: tuple[int, int],
    *,
    query: Tensor,
    key: Tensor,
    writes: Literal["note", "answer"],
    factor: float = 1.0,
) -> None:
    """Set one head. `query` and `key` map the normed stream to 16 numbers; the head copies tokens times `factor`."""
    block, head = place
    attention = model.transformer.h[block].attn
    mine = slice(SIZE * head, SIZE * (head + 1))
    with torch.no_grad():
        for number, matrix in enumerate((SHARP * query, key, _into("token").T)):
            attention.c_attn.weight[:, 4 * SIZE * number :][:, mine] = matrix
        attention.c_proj.weight[mine] = factor * _into(writes) / NORMED


def before() -> Tensor:
    """Return the query of a head that looks at the token before."""
    moved = torch.zeros(SIZE, SIZE)
    for place in range(1, SIZE):
        moved[place, place - 1] = 1.0
    return _into("position").T @ moved


@dataclass(frozen=True)
class Planted:
    model: Any
    text: str
    first: tuple[int, int]  # the head that is planted in the earlier block
    second: tuple[int, int]
    answer: int


def _drawn(seed: int, noise: float) -> tuple[random.Random, GPT2LMHeadModel, tuple[int, int], tuple[int, int]]:
    rng = random.Random(seed)
    block = rng.randrange(BLOCKS - 1)
    first = (block, rng.randrange(HEADS))
    second = (rng.randrange(block + 1, BLOCKS), rng.randrange(HEADS))
    return rng, empty_model(seed, noise), first, second


def induction(seed: int, noise: float = 0.02) -> Planted:
    """One head notes the token before; another looks for a place whose note is the current token, and copies it."""
    rng, model, first, second = _drawn(seed, noise)
    plant(model, first, query=before(), key=_into("position").T, writes="note")
    plant(model, second, query=_into("token").T, key=_into("note").T, writes="answer", factor=1.5)
    tokens = rng.sample(range(SIZE), 10)
    again = rng.randrange(1, 8)
    return Planted(model, _text([*tokens, tokens[again]]), first, second, tokens[again + 1])


def query_mover(seed: int, noise: float = 0.02) -> Planted:
    """One head notes the token at the beginning; another looks for the token after the noted one and copies it."""
    rng, model, first, second = _drawn(seed, noise)
    to_start = _into("position").T @ torch.ones(SIZE, SIZE) * torch.eye(SIZE)[0]
    plant(model, first, query=to_start, key=_into("position").T, writes="note")
    following = torch.roll(torch.eye(SIZE), 1, dims=1)  # token t asks for token t + 1
    plant(model, second, query=_into("note").T @ following, key=_into("token").T, writes="answer", factor=1.5)
    start = rng.randrange(SIZE)
    answer = (start + 1) % SIZE
    others = rng.sample([t for t in range(SIZE) if t not in (start, answer)], 8)
    return Planted(model, _text([start, *others[:3], answer, *others[3:]]), first, second, answer)


def copy_suppression(seed: int, noise: float = 0.02) -> Planted:
    """Tokens predict their successor; a head that finds the successor in the text takes it back."""
    rng, model, first, second = _drawn(seed, noise)
    following = torch.roll(torch.eye(SIZE), 1, dims=1)
    with torch.no_grad():
        model.transformer.wte.weight += following @ _into("answer")
    plant(model, second, query=_into("token").T @ following, key=_into("token").T, writes="answer", factor=-0.7)
    last = rng.randrange(SIZE)
    answer = (last + 1) % SIZE
    others = rng.sample([t for t in range(SIZE) if t not in (last, answer, (answer + 1) % SIZE)], 8)
    return Planted(model, _text([*others[:4], answer, *others[4:], last]), first, second, answer)


def _text(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))
