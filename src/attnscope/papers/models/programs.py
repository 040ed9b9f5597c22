"""Small programs as nano models with hand-written weights and compressed selectors, exact on inputs up to a length.

    reverse     the text backwards
    histogram   how often each token's symbol occurs
    sort        the symbols in order
    balanced    whether the parentheses up to here are balanced
    match       the position of the parenthesis that this one closes

The compiler of arXiv:2301.05062 stores every variable as a one-hot vector and gives a head one coordinate for each
value that its keys can have. Here a variable is a number in one channel, and a head compares *codes*: for query value v
and key value w, row v of W_Q and row w of W_K of a factorised selector (`commands.compile.compress`). The logits of the
selected keys of a query lie `margin` above all others, so n other keys together get at most n e^-margin of the weight.

Four moves are enough:

    fetch    A head whose query selects one token writes that token's number, with an error of order e^-margin.
    count    A head selects the c tokens with one symbol and also the token END, all with the same logit, so END gets
             1 / (c + 1) of the weight. (Tokens with equal keys have equal logits.) If the symbol depends on the query,
             an extra coordinate gives END the logit of that symbol.
    look up  A staircase of ReLUs: for a number x within a quarter of a step of one of the nodes x_0 < x_1 < ...,
             f(x) = f_0 + sum_m (f_m - f_(m-1)) ramp((x - x_(m-1)) / (x_m - x_(m-1))), where ramp(z) = relu(2z - 1/2) -
             relu(2z - 3/2) is 0 below 1/4 and 1 above 3/4. It also removes small errors of x.
    say      The answer is a number y; the logit of answer o is 2 o y - o^2, which is largest for the o nearest to y.

    reverse     every token selects END and fetches its position, n. Token i looks up the query code of position
                n - 1 - i, selects the token there and fetches its symbol.
    histogram   each token selects its own symbol and END, which gives 1 / (c + 1), and looks up c.
    sort        counting sort. Each symbol but the last has a head that counts it. If C_a tokens have a symbol of at
                most a, the symbol at position i is the number of a with C_a <= i; each a is one step of a staircase.
    balanced    causal, after a token START. The mean of +1 for each ( and -1 for each ) so far has the sign of the
                depth; if the depth is not 0, its absolute value is at least 1 / (length + 1). A text is not balanced at
                a token if the depth there is not 0, or if an earlier token has a depth below 0 (a head selects these).
    match       causal. Two heads count ( and ) with the help of START; the difference is the depth d after each token.
                The partner of ) is the last ( with depth d + 1: between the two, the depth stays above d. (If there is
                no partner, d is lower than any depth before, so no ( had depth d + 1.) A head selects the ( of that
                depth with a margin of 2 (length + 1) R, where R is the usual margin. An extra coordinate adds R times
                the position, to prefer later tokens. Another puts START half the margin below the selected keys, so
                that START wins if no key is selected.

Why sort needs a head for each symbol: suppose that in one head query v gives *equal* logits to all keys u < v and a
lower one to key v. Then q_v is orthogonal to k_u - k_0 for u < v and not to k_v - k_0, so these differences are
linearly independent and the head has a width of at least symbols - 1. These models have no norms; the tap and `scan`
accept them like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.heads.head import Head
from attnscope.papers.models.hand_sheet import Sheet
from attnscope.papers.models.nano import Nano

MARGIN = 24.0  # n other keys have at most n e^-24 of the weight: for thousands of keys, less than float32 resolves


class Selector(NamedTuple):
    """The keys that each query selects, the margin of their logits, and the head's number of extra coordinates."""

    chosen: Bool[np.ndarray, "row key"]
    margin: float = MARGIN
    beside: int = 0


class Texts(NamedTuple):
    """The inputs of a program: texts of 1 to `length` symbols, each one of `symbols`."""

    symbols: int
    length: int


Selectors = dict[str, Selector]


@dataclass(frozen=True)
class Program:
    """A program. `answers` computes in plain Python what the model must answer at each position of a text."""

    name: str
    selectors: Callable[[Texts], Selectors]
    build: Callable[[Texts, Mapping[str, Head]], Nano]
    answers: Callable[[Sequence[int]], list[int]]
    starts: bool = False  # whether the extra token is START (in front) and not END
    symbols: int | None = None  # number of symbols, if the program fixes it


def _codes(head: Head) -> tuple[Float[Tensor, "row width"], Float[Tensor, "key width"]]:
    """Return queries and keys whose products are the logits; the queries include the head's scale."""
    return head.queries.float() * head.scale, head.keys.float()


def _one(values: Sequence[float | int]) -> Float[Tensor, "some 1"]:
    return torch.as_tensor(values, dtype=torch.float32)[:, None]


def _shares(length: int) -> Float[Tensor, " node"]:
    """Return 1 / (c + 1) for c = length, ..., 0, in increasing order."""
    return 1 / torch.arange(length + 1.0, 0, -1)


def _reverse(texts: Texts, heads: Mapping[str, Head]) -> Nano:
    symbols, length = texts
    (ask_end, end), (ask_place, place) = _codes(heads["END"]), _codes(heads["place = n - 1 - i"])
    codes = place.shape[1]
    channels = {"symbol": 1, "place": 1, "end": end.shape[1], "here": codes, "last": 1, "ask": codes, "answer": 1}
    sheet = Sheet(channels, symbols + 1, length + 1, 2, [max(end.shape[1], codes)], max(1, 2 * (length - 1)), symbols)
    sheet.embed("symbol", _one([*range(symbols), 0]))
    sheet.embed("end", end)
    sheet.place("place", _one(range(length + 1)))
    sheet.place("here", place)
    sheet.head(0, 0, always=ask_end[0], key=["end"], value="place", write="last")
    sheet.staircase(0, {"last": 1.0, "place": -1.0}, torch.arange(float(length)), {"ask": ask_place}, shift=-1.0)
    sheet.head(1, 0, query=["ask"], key=["here"], value="symbol", write="answer")
    return sheet.answering("answer", symbols)


def _histogram(texts: Texts, heads: Mapping[str, Head]) -> Nano:
    symbols, length = texts
    ask, key = _codes(heads["same symbol"])
    codes = key.shape[1]
    channels = {"key": codes, "is end": 1, "ask": codes, "own": 1, "share": 1, "answer": 1}
    sheet = Sheet(channels, symbols + 1, length + 1, 1, [codes + 1], 2 * length, length + 1)
    nothing = torch.zeros(1, codes)
    sheet.embed("key", torch.cat([key, nothing]))
    sheet.embed("ask", torch.cat([ask, nothing]))
    sheet.embed("own", _one([*(ask * key).sum(1).tolist(), 0]))
    sheet.embed("is end", _one([0.0] * symbols + [1.0]))
    sheet.head(0, 0, query=["ask", "own"], key=["key", "is end"], value="is end", write="share")
    sheet.staircase(0, {"share": 1.0}, _shares(length), {"answer": _one(range(length, -1, -1))})
    return sheet.answering("answer", length + 1)


def _sort(texts: Texts, heads: Mapping[str, Head]) -> Nano:
    symbols, length = texts
    codes = [_codes(head) for head in heads.values()]
    counted = range(symbols - 1)
    channels = {"place": 1, "is end": 1, "answer": 1}
    channels |= {f"key {a}": codes[a][1].shape[1] for a in counted}
    channels |= {f"share {a}": 1 for a in counted} | {f"up to {a}": 1 for a in counted}
    hidden = 2 * max(1, len(counted)) * length
    wide = [key.shape[1] for _, key in codes]
    sheet = Sheet(channels, symbols + 1, length + 1, 2, wide or [1], hidden, symbols)
    sheet.embed("is end", _one([0.0] * symbols + [1.0]))
    sheet.place("place", _one(range(length + 1)))
    for a in counted:
        ask, key = codes[a]
        sheet.embed(f"key {a}", key)
        sheet.head(0, a, always=ask[0], key=[f"key {a}"], value="is end", write=f"share {a}")
        count = _one(range(length, -1, -1))
        sheet.staircase(0, {f"share {a}": 1.0}, _shares(length), {f"up to {b}": count for b in counted if b >= a})
        yes_no = {"answer": _one([1, 0])}
        sheet.staircase(1, {f"up to {a}": 1.0, "place": -1.0}, torch.tensor([0.0, 1.0]), yes_no)
    return sheet.answering("answer", symbols)


def _balanced(texts: Texts, heads: Mapping[str, Head]) -> Nano:
    length = texts.length
    (ask_all, every), (ask_low, low) = _codes(heads["all"]), _codes(heads["depth below 0"])
    channels = {"depth": 1, "every": every.shape[1], "mean": 1, "low": 1, "uneven": 1, "ever low": 1}
    sheet = Sheet(channels, 3, length + 1, 2, [max(every.shape[1], low.shape[1])], 4, 2, causal=True)
    sheet.embed("depth", _one([1, -1, 0]))
    sheet.embed("every", every)
    sheet.head(0, 0, always=ask_all[0], key=["every"], value="depth", write="mean")
    least = 1 / (length + 1)
    sheet.staircase(
        0, {"mean": 1.0}, torch.tensor([-least, 0.0, least]), {"low": _one([1, 0, 0]), "uneven": _one([1, 0, 1])}
    )
    sheet.head(1, 0, always=ask_low[0], key=["low"], key_weight=(low[1] - low[0])[:, None], key_bias=low[0],
               value="low", write="ever low")  # fmt: skip
    model = sheet.model
    model.output.weight.data[1, sheet.at["uneven"]] = model.output.weight.data[1, sheet.at["ever low"]] = -2.0
    model.output.bias.data[1] = 1.0
    return model


def _match(texts: Texts, heads: Mapping[str, Head]) -> Nano:
    length = texts.length
    opened, closed = _codes(heads["( or START"]), _codes(heads[") or START"])
    ask, key = _codes(heads["( at depth d + 1"])
    codes, none = key.shape[1], key[-1]
    channels = {"place": 1, "is start": 1, "no (": 1, "no )": 1,
                "open": opened[1].shape[1], "close": closed[1].shape[1], "opens": 1, "closes": 1, "depth": 1,
                "here": codes, "ask": codes, "late": 1, "lone": 1, "answer": 1}  # fmt: skip
    sheet = Sheet(channels, 3, length + 1, 3, [codes + 2, 1], 8 * (2 * length + 2), length + 1, causal=True)
    for name, values in (("is start", [0, 0, 1]), ("no (", [0, 1, 1]), ("no )", [1, 0, 1])):
        sheet.embed(name, _one(values))
    sheet.embed("open", opened[1])
    sheet.embed("close", closed[1])
    sheet.embed("late", _one([MARGIN] * 3))
    sheet.place("place", _one(range(length + 1)))
    count = _one(range(length, -1, -1))
    for index, (codes_of, name, share, sign) in enumerate(
        ((opened, "open", "opens", 1.0), (closed, "close", "closes", -1.0))
    ):
        sheet.head(0, index, always=codes_of[0][0], key=[name], value="is start", write=share)
        sheet.staircase(0, {share: 1.0}, _shares(length), {"depth": sign * count})
    # Depths run from -length to length; tokens of the other kind are moved far below and get the first value.
    depths, away = torch.arange(-length - 1.0, length + 1), -4.0 * length - 4
    sheet.staircase(1, {"depth": 1.0, "no (": away}, depths, {"here": torch.cat([none[None], key[:-1]])})
    gap = (length + 1) * MARGIN
    alone = (ask * key[:-1]).sum(1) - gap - ask @ none
    asks = {
        "ask": torch.cat([torch.zeros(1, codes), ask]),
        "lone": torch.cat([torch.tensor([2 * gap]), alone])[:, None],
    }
    sheet.staircase(1, {"depth": 1.0, "no )": away}, depths, asks, shift=1.0)
    sheet.head(2, 0, query=["ask", "late", "lone"], key=["here", "place", "is start"], value="place", write="answer")
    return sheet.answering("answer", length + 1)


def _partners(text: Sequence[int]) -> list[int]:
    """Return the position of the partner of each parenthesis, counted from 1, or 0 if it closes none."""
    waiting: list[int] = []
    partners = []
    for place, closes in enumerate(text, start=1):
        partners.append(waiting.pop() if closes and waiting else 0)
        if not closes:
            waiting.append(place)
    return partners


def _whether_balanced(text: Sequence[int]) -> list[int]:
    depth, fine, answers = 0, True, []
    for closes in text:
        depth += 1 - 2 * closes
        fine = fine and depth >= 0
        answers.append(int(fine and depth == 0))
    return answers


def _chosen(keys: int, *which: int) -> Selector:
    return Selector(np.isin(np.arange(keys), which)[None])


def _same(rows: int, keys: int, margin: float = MARGIN, beside: int = 0) -> Selector:
    return Selector(np.eye(rows, keys, dtype=bool), margin, beside)


def _of_match(texts: Texts) -> Selectors:
    """Return the selectors of `match`. All tokens other than ( share the last key."""
    depths = 2 * texts.length + 1
    last = _same(depths, depths + 1, margin=2 * (texts.length + 1) * MARGIN, beside=2)
    return {"( or START": _chosen(3, 0, 2), ") or START": _chosen(3, 1, 2), "( at depth d + 1": last}


def _of_sort(texts: Texts) -> Selectors:
    end = texts.symbols
    return {f"{symbol} or END": _chosen(end + 1, symbol, end) for symbol in range(end - 1)}


PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        Program(
            "reverse",
            lambda of: {
                "END": _chosen(of.symbols + 1, of.symbols),
                "place = n - 1 - i": _same(of.length, of.length + 1),
            },
            _reverse,
            lambda text: list(text)[::-1],
        ),
        Program(
            "histogram",
            lambda of: {"same symbol": _same(of.symbols, of.symbols, beside=1)},
            _histogram,
            lambda text: [list(text).count(symbol) for symbol in text],
        ),
        Program("sort", _of_sort, _sort, sorted),
        Program(
            "balanced",
            lambda _: {"all": _chosen(3, 0, 1, 2), "depth below 0": _chosen(2, 1)},
            _balanced,
            _whether_balanced,
            starts=True,
            symbols=2,
        ),
        Program("match", _of_match, _match, _partners, starts=True, symbols=2),
    )
}
