"""Small programs as nano models, exact on every input up to a length: weights written by hand on compressed selectors.

    reverse     the text backwards
    histogram   how often each token's symbol occurs
    sort        the symbols in order
    balanced    whether the parentheses up to here are balanced
    match       where the parenthesis stands that this one closes

A compiler of programs into weights (arXiv:2301.05062) holds every variable as a one-hot vector and gives a head one
coordinate for each value that its keys can have. Here variables are numbers in one channel each, and a head compares
*codes*: row v of W_Q and row w of W_K of a factorised selector (`commands.compile.compress`), in which the selected
keys of every query lie `margin` above all others. So n other keys have at most n e^-margin of the weight.

Four moves are enough:

    fetch    A head whose query selects one token writes that token's number, off by e^-margin.
    count    Let a head select the tokens of one symbol and one token more, END, all at the same logit: END has
             1 / (c + 1) of the weight, c being how many there are. Tokens with equal keys have equal logits. Where END
             has to be beside different symbols, a coordinate of its own gives it the logit of the query's own symbol.
    look up  A staircase of ReLUs: for numbers x that are one of x_0 < x_1 < ... up to a quarter of a step,
             f(x) = f_0 + sum_m (f_m - f_(m-1)) ramp((x - x_(m-1)) / (x_m - x_(m-1))), where ramp(z) = relu(2z - 1/2) -
             relu(2z - 3/2) is 0 below 1/4 and 1 above 3/4. It cleans: what was a little off comes out right.
    say      The answer is a number y; the output has 2 o y - o^2 for answer o, largest for the o nearest to y.

    reverse     all select END and fetch its place, n. Token i looks up the query code of place n - 1 - i, selects the
                token there and fetches its symbol.
    histogram   each selects its own symbol and END: 1 / (c + 1), from which c is looked up.
    sort        counting sort. One head for each symbol but the last counts it. With C_a tokens of symbol a or less, the
                symbol at place i is the number of a with C_a <= i: one step of a staircase each.
    balanced    causal, after a token START. The mean over all of +1 for ( and -1 for ) has the sign of the depth, and a
                depth that is not 0 makes it at least 1 / (length + 1). Who ever sees a token of depth below 0 (a
                selector of that flag), or has another depth than 0 itself, is not balanced.
    match       causal. Two heads count ( and ) beside START, and their difference is the depth d behind each token. The
                partner of ) is the last ( with depth d + 1, between them it stays above d. (If there is none, d is
                lower than any depth before, so no ( ended at d + 1.) The head selects codes of ( and their depth by a
                margin of 2 (length + 1) R; R times the place, one coordinate, prefers later ones; and START, one more,
                stands half the margin below the selected, where it wins if there is nobody. R is the usual margin.

Why counting in order costs a head for each symbol: one head in which query v gives *equal* logits to all keys u < v and
less to key v has q_v orthogonal to k_u - k_0 for u < v and not to k_v - k_0, so these differences are independent:
width symbols - 1. Nothing is normed, and the tap and `scan` take these models as any other.
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

MARGIN = 24.0  # n other keys have n e^-24 of the weight: less than float32 resolves for thousands of keys


class Selector(NamedTuple):
    """The keys that a query selects, their margin, and the number of coordinates of the head besides the codes."""

    chosen: Bool[np.ndarray, "row key"]
    margin: float = MARGIN
    beside: int = 0


class Texts(NamedTuple):
    """Texts of up to `length` symbols."""

    symbols: int
    length: int


Selectors = dict[str, Selector]


@dataclass(frozen=True)
class Program:
    """`answers` computes by an obvious loop what the model must answer at every place of a text."""

    name: str
    selectors: Callable[[Texts], Selectors]
    build: Callable[[Texts, Mapping[str, Head]], Nano]
    answers: Callable[[Sequence[int]], list[int]]
    starts: bool = False  # the extra token is START, not END
    symbols: int | None = None  # fixed by the program


def _codes(head: Head) -> tuple[Float[Tensor, "row width"], Float[Tensor, "key width"]]:
    """Return queries and keys whose products are logits: the scale of the head is in the queries."""
    return head.queries.float() * head.scale, head.keys.float()


def _one(values: Sequence[float | int]) -> Float[Tensor, "some 1"]:
    return torch.as_tensor(values, dtype=torch.float32)[:, None]


def _shares(length: int) -> Float[Tensor, " node"]:
    """Return 1 / (c + 1) for c = length .. 0, rising."""
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
    return sheet.say("answer", symbols)


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
    return sheet.say("answer", length + 1)


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
    return sheet.say("answer", symbols)


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
    # Depths from -length to length; tokens to which this does not apply are far below and get the first value.
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
    return sheet.say("answer", length + 1)


def _partners(text: Sequence[int]) -> list[int]:
    """Return the place of each partner, from 1; 0 is no partner."""
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
    """Return the selectors for matching parentheses. All tokens other than ( share the last key."""
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
