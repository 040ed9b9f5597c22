"""Graphs as patterns: adjacency matrices with uniform rows and very unequal degrees."""

from __future__ import annotations

import numpy as np

from attnscope.heads.pattern import Pattern


def power_law(n: int, links: int, seed: int) -> Pattern:
    """Return a graph of Barabasi and Albert (1999): new nodes link to old ones in proportion to their degree."""
    rng = np.random.default_rng(seed)
    ends = list(range(links))  # every node as often as it has links, the first nodes once more
    edges = []
    for node in range(links, n):
        chosen: set[int] = set()
        while len(chosen) < links:
            chosen.add(ends[int(rng.integers(len(ends)))])
        for old in chosen:
            edges.append((old, node))
            ends += [old, node]
    return _adjacency(np.array(edges), n, f"power-law graph, n={n}, seed={seed}")


def erdos_renyi(n: int, mean_degree: float, seed: int) -> Pattern:
    """Return a graph that links every pair with the same probability; a node without links attends to itself."""
    linked = np.triu(np.random.default_rng(seed).random((n, n)) < mean_degree / (n - 1), 1)
    alone = np.flatnonzero(~(linked | linked.T).any(1))
    linked[alone, alone] = True
    return _adjacency(np.argwhere(linked), n, f"random graph, n={n}, seed={seed}")


def _adjacency(edges: np.ndarray, n: int, name: str) -> Pattern:
    both = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
    return Pattern.of(both[:, 0], both[:, 1], np.ones(len(both)), n=n, normalise=True, name=name)
