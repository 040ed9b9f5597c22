"""`dong2021`, small enough to run in every test; shapes, chained patterns, and accuracy by path length."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attnscope.commands.collapse.record import Curve
from attnscope.commands.collapse.run import collapse
from attnscope.core.errors import RefusalError
from attnscope.core.experiment import UnsavedSession
from attnscope.hf.loading.in_memory import shaped
from attnscope.hf.loading.load import Loaded
from attnscope.matrix.collapse_bounds import dobrushin
from attnscope.matrix.residual import relative_residual
from attnscope.papers.experiments.dong2021 import dong2021
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.nano_paths import SKIP, path_alone
from attnscope.papers.models.tasks import hits, sort_task
from attnscope.papers.trials.circle_walk import circle_walk
from attnscope.papers.trials.path_accuracy import (
    TASKS,
    Learned,
    draw_path,
    exact_accuracies,
    learned_numbers,
    learned_paths,
    sampled_accuracies,
    task_and_shape,
    whole_accuracy,
)
from attnscope.papers.trials.path_chains import ARCHITECTURES, chained_residuals, chains, path_counts, path_pattern
from attnscope.papers.trials.random_shapes import activation_kept

TOY = Learned(2, 2, 8, (12, 4), steps=2, batch=4, rate=1e-3)
TINY = replace(
    dong2021.presets["quick"],
    sort=TOY,
    hull=TOY,
    memorisation=TOY,
    shapes=(),
    samples=(5, 20),
    chain=(8, 2, 3, 8),
    chain_paths=3,
    chain_samples=1,
    circle_widths=(4, 8),
    circle_points=40,
    circle_steps=2,
    applied=10,
)
NOT_RUN = {"attention_alone_collapses", "mlps_alone_do_not_stop_it", "skips_stop_it", "curves_as_published"}  # no shape


def test_without_a_shape_of_the_paper_its_curves_are_not_drawn() -> None:
    found = dong2021.run(TINY, (0,), UnsavedSession())
    assert {claim.name for claim in dong2021.judged(found) if claim.verdict == "not run"} == NOT_RUN
    assert not [figure for figure in found.figures if figure.name.startswith("A-")]
    assert {figure.name[0] for figure in found.figures} >= {"B", "C", "E"}


SHAPE: dict[str, Any] = {
    "vocab_size": 200,
    "embedding_size": 32,
    "hidden_size": 96,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "num_hidden_layers": 12,
    "initializer_range": 0.06,
}


def kept(seed: int) -> Loaded:
    return activation_kept(seed, **SHAPE)


def whole(seed: int) -> Loaded:
    return shaped("albert-base", seed=seed, **SHAPE)


def test_only_the_two_matrices_of_the_mlp_are_taken_out() -> None:
    ours, theirs = whole(0).model, kept(0).model
    changed = {path for path, module in theirs.named_modules() if type(module) is not type(ours.get_submodule(path))}
    assert {path.rpartition(".")[2] for path in changed} == {"ffn", "ffn_output"}
    assert all(isinstance(theirs.get_submodule(path), nn.Identity) for path in changed)
    left = theirs.state_dict()
    assert left
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in left.items())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_activation_alone_prevents_collapse_of_attention_with_skips(seed: int) -> None:
    sizes: dict[str, Any] = {"samples": 2, "max_tokens": 16, "bounds": False, "seeds": (seed,)}
    cut: dict[str, Curve] = collapse(whole, variants="san,san+skip", **sizes).curves
    theirs: dict[str, Curve] = collapse(kept, variants="san+mlp,whole", **sizes).curves
    assert theirs["whole"].mean[0] == cut["san+skip"].mean[0]  # the same tokens in the same embedding
    assert theirs["whole"].mean[-1] > 0.3
    assert theirs["whole"].mean[-1] > 2 * cut["san+skip"].mean[-1]
    # Without skips an activation between norms does not prevent the collapse.
    assert max(theirs["san+mlp"].mean[-1], cut["san"].mean[-1]) < 1e-12


def random_patterns(seed: int, layers: int, heads: int, n: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(layers, heads, n, n, generator=draw, dtype=torch.float64)).softmax(-1)


def test_the_first_block_stands_rightmost() -> None:
    first, second = random_patterns(0, 2, 1, 4)[:, 0]
    tokens = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(path_pattern([first, second]) @ tokens, second @ (first @ tokens))
    # Copying the first token everywhere, then anything: all rows are equal. The other way round they are not.
    copy = torch.zeros(4, 4, dtype=torch.float64)
    copy[:, 0] = 1
    assert float(relative_residual(path_pattern([copy, second])[None])) < 1e-15
    uniform = torch.full((4, 4), 0.25, dtype=torch.float64)
    assert float(relative_residual(path_pattern([second, uniform])[None])) < 1e-15
    with pytest.raises(RefusalError):
        path_pattern([])


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(2, 6))
def test_rows_sum_to_one_and_tau_multiplies(seed: int, layers: int, n: int) -> None:
    patterns = random_patterns(seed, layers, 1, n)[:, 0]
    product = path_pattern(list(patterns))
    torch.testing.assert_close(product.sum(-1), torch.ones(n, dtype=torch.float64))
    assert float(dobrushin(product)) <= float(dobrushin(patterns).prod()) + 1e-12


def test_longer_chains_forget_more_and_draws_repeat() -> None:
    patterns = random_patterns(1, 6, 3, 8)
    found = chained_residuals(patterns, paths=30, seed=4)
    assert found == chained_residuals(patterns, paths=30, seed=4)
    middles = [sorted(values)[15] for values in found.values()]
    assert middles == sorted(middles, reverse=True)
    identity = torch.eye(5, dtype=torch.float64).expand(3, 2, 5, 5)
    kept = chained_residuals(identity, paths=4)
    assert all(value == pytest.approx(kept[1][0]) for values in kept.values() for value in values)


def test_in_a_model() -> None:
    model = Nano(Config(vocab_size=20, width=12, heads=2, layers=3, initial=0.8), seed=0)
    batches = [{"input_ids": torch.randint(0, 20, (1, 9), generator=torch.Generator().manual_seed(0))}] * 2
    found = chains(model, batches, paths=10)
    assert found.lengths == (1, 2, 3)
    assert found.n == (20, 20, 20)
    assert found.median[0] > found.median[1] > found.median[2] > 0
    assert all(low <= mid <= high for low, mid, high in zip(found.low, found.median, found.high, strict=True))
    with pytest.raises(RefusalError, match="single token"):
        chains(model, [{"input_ids": torch.tensor([[1]])}])


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (3, 2), (4, 3)])
def test_against_enumeration(layers: int, heads: int) -> None:
    lengths = [sum(choice > 0 for choice in path) for path in product(range(heads + 1), repeat=layers)]
    assert list(path_counts(layers, heads).counts) == [lengths.count(k) for k in range(layers + 1)]


@given(st.integers(1, 40), st.integers(1, 40))
def test_totals_are_exact(layers: int, heads: int) -> None:
    found = path_counts(layers, heads)
    assert found.total == (heads + 1) ** layers
    assert sum(found.shares) == 1
    assert found.mean_length == Fraction(heads * layers, heads + 1)


def test_named_architectures() -> None:
    assert path_counts(*ARCHITECTURES["BERT-base"]).total == 13**12
    assert path_counts(*ARCHITECTURES["GPT-3"]).total == 97**96
    assert path_counts(*ARCHITECTURES["DeiT-T"]).counts[:3] == (1, 36, 594)
    with pytest.raises(RefusalError):
        path_counts(0, 3)


SMALL = Learned(2, 2, 8, (12, 6), steps=3, batch=4, rate=1e-3)


@pytest.mark.parametrize("name", TASKS)
def test_paths_of_all_lengths_sum_to_the_model(name: str) -> None:
    task, config = task_and_shape(name, SMALL, seed=0)
    model = Nano(config, 1)
    exact = exact_accuracies(model, task)
    assert exact["up_to"][-1] == whole_accuracy(model, task)
    assert {len(values) for values in exact.values()} == {config.layers + 1}
    assert exact["up_to"][0] == exact["alone"][0]


def test_sampled_paths_are_averaged() -> None:
    """Length zero has one path, however often it is drawn: the skip in every block."""
    task = sort_task(4, 6, seed=0)
    model = Nano(Config(vocab_size=10, width=8, heads=2, layers=3, norm="post", max_tokens=8), 0)
    found = sampled_accuracies(model, task, (1, 4), np.random.default_rng(0))
    right, total = hits(path_alone(model, task.batch(task.test), (SKIP,) * 3), task.labels[task.test])
    assert found[1][0] == found[4][0] == right / total
    assert len(found[4]) == 4


def test_paths_of_a_length_are_equally_likely() -> None:
    rng = np.random.default_rng(0)
    counts = Counter(draw_path(3, 2, 2, rng) for _ in range(6000))
    assert len(counts) == 3 * 2**2
    assert all(sum(choice != SKIP for choice in path) == 2 for path in counts)
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_numbers_for_the_claims() -> None:
    record = {"task": "sort", "accuracy": 0.9, "ceiling": 1.0, "majority": 0.1, "up_to": [0.1, 0.5, 0.8, 0.85, 0.9]}
    record |= {"without": [0.9, 0.2, 0.8, 0.7, 0.6], "sampled_20": [0.2, 0.4, 0.3, 0.2, 0.15]}
    numbers = learned_numbers([record])
    assert numbers["sort_loss_with_short_paths"] == [pytest.approx(0.1)]
    assert numbers["sort_loss_without_a_long_length"] == [pytest.approx(0.3)]
    assert numbers["sort_longest_paths_above_majority"] == [pytest.approx(0.05)]
    assert numbers["sort_short_over_long_paths"] == [pytest.approx(0.25)]


def test_the_seed_decides_what_is_learned() -> None:
    once, again, other = (learned_paths("sort", SMALL, (5, 20), seed, UnsavedSession()) for seed in (0, 0, 1))
    assert once == again
    assert once["loss"] != other["loss"]


def test_a_walk_is_measured_from_its_start() -> None:
    found = circle_walk("base", 4, 0.0, points=40, steps=2, applied=10, seed=0, session=UnsavedSession())
    assert found["track"][0] == [[pytest.approx(0.3), 0.0], [pytest.approx(-0.3), pytest.approx(0.0, abs=1e-4)]]
    assert len(found["track"]) == 3
    assert torch.tensor(found["gap"]).isfinite()
