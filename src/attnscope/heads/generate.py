"""Generators of patterns: common shapes of attention, and random patterns on which constructions are measured."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Int

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.stamp import refuse_unusable_seed
from attnscope.heads.pattern import Pattern

Weights = Literal["uniform", "random"]
KeyTable = Int[np.ndarray, "query place"]
MOST_ENTRIES = 2**27  # about 2 GB as rows, columns and weights
SPREAD = 4.0


@dataclass(frozen=True)
class _Kind:
    """The name and size of a pattern, which is made from a table of keys per query or from entries."""

    name: str
    n: int
    k: int
    causal: bool
    weights: Weights = "uniform"
    seed: int = 0

    def of_table(self, keys: KeyTable, seen: Bool[np.ndarray, "query place"]) -> Pattern:
        rows, place = np.nonzero(seen)
        return self.of_entries(rows, keys[rows, place])

    def of_entries(self, rows: Sequence[int] | np.ndarray, columns: Sequence[int] | np.ndarray) -> Pattern:
        if self.weights not in get_args(Weights):
            raise RefusalError(
                f"There are no weights called '{self.weights}'.{nearest(self.weights, get_args(Weights))}"
            )
        weights, drawn = np.ones(len(rows)), self.weights == "random" and self.k > 1
        if drawn:
            refuse_unusable_seed(self.seed, lowest=0)
            # Use a separate generator, so that a seed gives the same support with either kind of weights.
            weights = np.random.default_rng([self.seed, 1]).uniform(1, SPREAD, len(rows))
        name = f"{'causal ' * self.causal}{self.name.replace('_', ' ')}, n={self.n}, k={self.k}"
        name = f"{name}, seed={self.seed}" if drawn or self.name in _DRAWN else name
        entries = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64), weights
        return Pattern.of(*entries, n=self.n, causal=self.causal, normalise=True, name=name)


def window(n: int, k: int, *, causal: bool = False, weights: Weights = "uniform", seed: int = 0) -> Pattern:
    """Let each query attend to its k nearest keys, shifted inwards at the ends; causal: the last k, itself included."""
    _check(n, k)
    query, place = np.arange(n)[:, None], np.arange(k)
    keys = query - place if causal else np.clip(query - k // 2, 0, n - k) + place
    return _Kind("window", n, k, causal, weights, seed).of_table(keys, keys >= 0)


def strided(
    n: int, k: int, *, stride: int | None = None, causal: bool = False, weights: Weights = "uniform", seed: int = 0
) -> Pattern:
    """Let each query attend to every stride-th key from itself on (n // k by default): backwards if causal, else
    cyclic.
    """
    _check(n, k)
    stride = n // k if stride is None else stride
    if stride < 1 or (k - 1) * stride >= n:
        raise RefusalError(f"{k} keys at a stride of {stride} do not fit into {n}: choose a stride from 1 to {n // k}.")
    steps = np.arange(n)[:, None] + np.arange(k) * (-stride if causal else stride)
    return _Kind("strided", n, k, causal, weights, seed).of_table(steps if causal else steps % n, steps >= 0)


def sink_window(n: int, k: int, *, causal: bool = False, weights: Weights = "uniform", seed: int = 0) -> Pattern:
    """Let each query attend to key 0 and a window of k - 1 other keys, as a streaming cache does (arXiv:2309.17453)."""
    _check(n, k)
    query, place = np.arange(n)[:, None], np.arange(k - 1)
    near = query - place if causal else np.clip(query - (k - 1) // 2, 1, n - k + 1) + place
    keys = np.concatenate([np.zeros((n, 1), dtype=np.int64), near], axis=1)
    seen = np.concatenate([np.ones((n, 1), dtype=bool), near >= 1], axis=1)  # key 0 is already included
    return _Kind("sink_window", n, k, causal, weights, seed).of_table(keys, seen)


def block(n: int, k: int, *, causal: bool = False, weights: Weights = "uniform", seed: int = 0) -> Pattern:
    """Let the tokens of each group of k neighbours attend to each other; the last group may be smaller."""
    _check(n, k)
    query = np.arange(n)[:, None]
    keys = query // k * k + np.arange(k)
    return _Kind("block", n, k, causal, weights, seed).of_table(keys, keys <= (query if causal else n - 1))


def previous_token(tokens: Any, *, causal: bool = False) -> Pattern:
    """Let each query attend to the token before it, the first to itself. `tokens` is a sequence or its length."""
    n = int(tokens) if isinstance(tokens, Integral) else len(_listed(tokens))
    _check(n, 1)
    return _Kind("previous_token", n, 1, causal).of_entries(np.arange(n), np.maximum(np.arange(n) - 1, 0))


def induction(tokens: Any, *, causal: bool = False, weights: Weights = "uniform", seed: int = 0) -> Pattern:
    """Let query i attend to the keys j + 1 right after earlier occurrences of its token: tokens[j] == tokens[i], j < i.

    A token seen for the first time attends to key 0, as idle heads do. No query looks ahead, with or without `causal`.
    `tokens` is a sequence of words or numbers, or an array or tensor of one dimension.
    """
    tokens = _listed(tokens)
    followers: dict[Hashable, list[int]] = {}
    rows: list[int] = []
    columns: list[int] = []
    for query, token in enumerate(tokens):
        keys = followers.setdefault(token, [])
        columns += keys or [0]
        rows += [query] * max(1, len(keys))
        keys.append(query + 1)
        if len(rows) > MOST_ENTRIES:
            raise RefusalError(f"The tokens repeat too often for a sparse pattern (seen at {query}): give fewer.")
    n = len(tokens)
    _check(n, 1)
    k = max(map(len, followers.values())) - 1 or 1
    return _Kind("induction", n, k, causal, weights, seed).of_entries(rows, columns)


def permutation(n: int, seed: int = 0, *, causal: bool = False) -> Pattern:
    """Draw one key per query at random, every key once (causal: at most twice, see `union_of_permutations`)."""
    _check(n, 1, seed)
    rng = np.random.default_rng(seed)
    keys = _earlier_keys(n, 1, rng) if causal else rng.permutation(n)[:, None]
    return _Kind("permutation", n, 1, causal, seed=seed).of_table(keys, keys >= 0)


def union_of_permutations(
    n: int, k: int, seed: int = 0, *, causal: bool = False, weights: Weights = "random"
) -> Pattern:
    """Return the union of k random permutations that share no entry: k keys in every row, k queries in every column.

    Under a causal mask the identity is the only permutation, so rows draw among earlier keys, none more than 2k times.
    """
    _check(n, k, seed)
    rng = np.random.default_rng(seed)
    keys = _earlier_keys(n, k, rng) if causal else _disjoint_permutations(n, k, rng)
    return _Kind("union_of_permutations", n, k, causal, weights, seed).of_table(keys, keys >= 0)


def random_graph(
    n: int, k: int, seed: int = 0, *, loops: bool = False, causal: bool = False, weights: Weights = "uniform"
) -> Pattern:
    """Return the adjacency of a random graph with k neighbours per node (fewer for some).

    With `loops`, a node has k - 1 neighbours and itself.

    A node without neighbours (causal: without earlier ones) attends to itself.
    """
    _check(n, k, seed)
    edges = _random_edges(n, min(k - loops, n - 1), np.random.default_rng(seed))
    high, low = edges.max(axis=1), edges.min(axis=1)
    rows, columns = (high, low) if causal else (np.concatenate([high, low]), np.concatenate([low, high]))
    alone = np.arange(n) if loops else np.flatnonzero(np.bincount(rows, minlength=n) == 0)
    rows, columns = np.concatenate([rows, alone]), np.concatenate([columns, alone])
    return _Kind("random_graph", n, k, causal, weights, seed).of_entries(rows, columns)


def generate(name: str, n: int, k: int, seed: int = 0, causal: bool = False, weights: Weights | None = None) -> Pattern:
    """Return a pattern of a named shape. Rows at the edge of a shape may have fewer than k keys.

    Parameters
    ----------
    name : str
        The generator, such as "window", "strided" or "union_of_permutations" (`GENERATORS` has all).
    n, k, seed : int
        The number of tokens, the number of keys for each query, and the seed of random shapes and weights.
    causal, weights : bool, str, optional
        Whether query i sees keys 0 to i only; "uniform" weights, or "random" ones within a factor of 4.

    Returns
    -------
    Pattern

    Raises
    ------
    RefusalError
        If the name is unknown, or there is no such pattern of this size.

    Examples
    --------
    >>> attnscope.generate("window", 8, 2)
    Pattern('window, n=8, k=2', 8 x 8, k=2)
    """
    if name not in GENERATORS:
        raise RefusalError(f"There is no pattern generator called '{name}'.{nearest(name, GENERATORS)}")
    return GENERATORS[name](n, k, seed, causal, weights)


def _check(n: int, k: int, seed: int = 0) -> None:
    if n < 1:
        raise RefusalError(f"A pattern of {n} queries is impossible: ask for at least one.")
    if not 1 <= k <= n:
        raise RefusalError(f"{k} keys per query do not fit {n} keys: choose k from 1 to {n}.")
    if n * k > MOST_ENTRIES:
        raise RefusalError(f"A pattern with {n} x {k} entries would not fit into memory: choose a smaller n or k.")
    refuse_unusable_seed(seed, lowest=0)


def _listed(tokens: Any) -> Sequence[Hashable]:
    """Return the tokens as comparable values: elements of a tensor are tensors, which are never equal as dict keys."""
    listed = list(tokens) if isinstance(tokens, list | tuple | str) else np.asarray(tokens).tolist()
    if not isinstance(listed, list) or any(isinstance(token, list) for token in listed):
        raise RefusalError("The tokens are not one sequence: give a list of words or numbers, or a row of token ids.")
    return listed


def _disjoint_permutations(n: int, k: int, rng: np.random.Generator) -> KeyTable:
    if 2 * k > n:  # the complement of n - k disjoint permutations has k keys in every row and column
        left = np.ones((n, n), dtype=bool)
        left[np.arange(n)[:, None], _disjoint_permutations(n, n - k, rng)] = False
        return np.nonzero(left)[1].reshape(n, k)
    keys = np.empty((n, k), dtype=np.int64)
    for column in range(k):
        taken, fresh = keys[:, :column], rng.permutation(n)
        # A clash is swapped with another row if neither then clashes. At most half of the keys are taken, so at least a
        # quarter of the swaps succeed.
        while len(clashes := np.flatnonzero((taken == fresh[:, None]).any(axis=1))):
            for row in clashes.tolist():
                other = int(rng.integers(n))
                if fresh[other] not in taken[row] and fresh[row] not in taken[other]:
                    fresh[[row, other]] = fresh[[other, row]]
        keys[:, column] = fresh
    return keys


def _earlier_keys(n: int, k: int, rng: np.random.Generator) -> KeyTable:
    """Draw min(k, i + 1) of the keys 0..i for each query i, with -1 in empty places; no key is drawn more than 2k
    times.

    There are always enough: a key is full after 2k queries, so no key is full before query 2k, and later at most k i /
    2k = i / 2 of the i + 1 keys are full, which leaves more than k.
    """
    keys = np.full((n, k), -1, dtype=np.int64)
    taken = np.zeros(n, dtype=np.int64)
    for query in range(n):
        open_keys = np.flatnonzero(taken[: query + 1] < 2 * k)
        chosen = rng.choice(open_keys, size=min(k, query + 1), replace=False)
        keys[query, : len(chosen)] = chosen
        taken[chosen] += 1
    return keys


def _random_edges(n: int, degree: int, rng: np.random.Generator) -> Int[np.ndarray, "edge two"]:
    """Pair the loose ends of nodes at random; pairs that loop or repeat are separated and paired again, 30 times."""
    ends = np.repeat(np.arange(n), degree)
    edges = np.empty(0, dtype=np.int64)  # each edge as low * n + high
    for _ in range(30):
        ends = rng.permutation(ends)
        pairs = np.sort(ends[: len(ends) // 2 * 2].reshape(-1, 2), axis=1)
        codes = pairs[:, 0] * n + pairs[:, 1]
        fresh = np.zeros(len(codes), dtype=bool)
        fresh[np.unique(codes, return_index=True)[1]] = True
        fresh &= (pairs[:, 0] != pairs[:, 1]) & ~np.isin(codes, edges)
        edges = np.concatenate([edges, codes[fresh]])
        ends = np.concatenate([pairs[~fresh].ravel(), ends[len(codes) * 2 :]])
        if not len(ends):
            break
    return np.stack([edges // n, edges % n], axis=1)


def _generator(function: Callable[..., Pattern], weights: Weights = "uniform") -> Generator:
    usual = weights

    def make(n: int, k: int, seed: int = 0, causal: bool = False, weights: Weights | None = None) -> Pattern:
        return function(n, k, seed=seed, causal=causal, weights=weights or usual)

    return make


def _with_one_key(name: str, function: Callable[..., Pattern]) -> Generator:
    def make(n: int, k: int, seed: int = 0, causal: bool = False, weights: Weights | None = None) -> Pattern:
        if k != 1:
            raise RefusalError(f"The pattern {name} has one key per query, not {k}: leave k at 1.")
        return function(n, **({"seed": seed} if name in _DRAWN else {}), causal=causal)

    return make


def _induction(n: int, k: int, seed: int = 0, causal: bool = False, weights: Weights | None = None) -> Pattern:
    """Draw random tokens, each k + 1 times, so that the last occurrence of each looks back at k earlier ones."""
    _check(n, k, seed)
    tokens = np.random.default_rng(seed).permutation(np.arange(n) // (k + 1)).tolist()
    return induction(tokens, causal=causal, weights=weights or "uniform", seed=seed)


Generator = Callable[..., Pattern]
"""`generator(n, k, seed=0, causal=False, weights=None)`"""
_DRAWN = ("permutation", "union_of_permutations", "random_graph")
GENERATORS: Mapping[str, Generator] = {
    "permutation": _with_one_key("permutation", permutation),
    "union_of_permutations": _generator(union_of_permutations, "random"),
    "window": _generator(window),
    "strided": _generator(strided),
    "sink_window": _generator(sink_window),
    "block": _generator(block),
    "random_graph": _generator(random_graph),
    "induction": _induction,
    "previous_token": _with_one_key("previous_token", previous_token),
}
