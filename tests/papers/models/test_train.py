"""Training is a function of the seed, and an interruption leaves no trace in the numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.errors import RefusalError
from attnscope.papers.models.nano import Config, Nano

RECIPE = Recipe(steps=12, rate=1e-2)


def model(seed: int = 0) -> Nano:
    return Nano(Config(vocab_size=6, width=8, heads=2, layers=2, max_tokens=4), seed)


def copying(one: nn.Module, rng: torch.Generator) -> Tensor:
    ids = torch.randint(0, 6, (8, 4), generator=rng)
    return F.cross_entropy(one(input_ids=ids).flatten(0, 1), ids.flatten())


class Stop(Exception):  # noqa: N818
    pass


def stopping_at(step: int):
    def advance(stage: str, done: int, total: int) -> None:
        if done == step:
            raise Stop

    return advance


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_training_lowers_the_loss() -> None:
    losses = train(model(), copying, Recipe(steps=150, rate=1e-2))
    assert losses[-1] < 0.3 * losses[0]


def test_the_seed_decides_everything() -> None:
    first, second, other = model(), model(), model()
    assert train(first, copying, RECIPE, seed=3) == train(second, copying, RECIPE, seed=3)
    assert same(first, second)
    assert train(other, copying, RECIPE, seed=4) != train(second, copying, RECIPE, seed=3)


@pytest.mark.parametrize("step", [1, 7, 12])
def test_resumed_training_equals_unbroken_training_bit_for_bit(tmp_path: Path, step: int) -> None:
    unbroken, broken, resumed = model(), model(), model(seed=9)
    losses = train(unbroken, copying, RECIPE)
    with pytest.raises(Stop):
        train(broken, copying, RECIPE, kept=tmp_path / "a" / "state", advance=stopping_at(step))
    assert train(resumed, copying, RECIPE, kept=tmp_path / "a" / "state") == losses
    assert same(unbroken, resumed)


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    losses = train(model(), copying, RECIPE, kept=tmp_path / "state")
    again = model(seed=5)
    assert train(again, copying, RECIPE, kept=tmp_path / "state", advance=stopping_at(1)) == losses


def test_another_plan_or_model_is_refused(tmp_path: Path) -> None:
    train(model(), copying, RECIPE, kept=tmp_path / "state")
    with pytest.raises(RefusalError, match="another training run"):
        train(model(), copying, Recipe(steps=13, rate=1e-2), kept=tmp_path / "state")
    with pytest.raises(RefusalError, match="another training run"):
        train(model(), copying, RECIPE, seed=1, kept=tmp_path / "state")
    wide = Nano(Config(vocab_size=6, width=12, heads=2, layers=2, max_tokens=4))
    with pytest.raises(RefusalError, match="another model"):
        train(wide, copying, RECIPE, kept=tmp_path / "state")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    train(model(), copying, RECIPE, kept=tmp_path / "state")
    numbers = tmp_path / "state.safetensors"
    numbers.write_bytes(numbers.read_bytes()[:100])
    with pytest.raises(RefusalError, match="start again without resuming"):
        train(model(), copying, RECIPE, kept=tmp_path / "state")
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(RefusalError, match="start again without resuming"):
        train(model(), copying, RECIPE, kept=tmp_path / "state")


def test_only_the_two_files_are_kept_and_the_words_are_strict_json(tmp_path: Path) -> None:
    train(model(), copying, RECIPE, kept=tmp_path / "state")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.json", "state.safetensors"]
    assert json.loads((tmp_path / "state.json").read_text())["plan"]["recipe"]["steps"] == 12


def test_the_rate_rises_and_falls() -> None:
    recipe = Recipe(steps=100, rate=1.0, warmup=0.1)
    rates = [recipe.rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_nan_loss_is_refused() -> None:
    def broken(one: nn.Module, rng: torch.Generator) -> Tensor:
        return copying(one, rng) * torch.nan

    with pytest.raises(RefusalError, match="smaller rate"):
        train(model(), broken, RECIPE)


def test_impossible_recipes_are_refused() -> None:
    with pytest.raises(RefusalError, match="steps"):
        Recipe(steps=0, rate=1.0)
    with pytest.raises(RefusalError, match="rate"):
        Recipe(steps=1, rate=0.0)


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_last_finite_weights_are_kept(broken: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = nn.Linear(2, 1, bias=False)
    seen: list[torch.Tensor] = []

    def loss(trained: nn.Module, rng: torch.Generator) -> torch.Tensor:
        seen.append(model.weight.detach().clone())
        value = trained(torch.ones(3, 2)).square().mean()
        if len(seen) < 4:
            return value
        # sqrt has no finite slope at 0: the loss is finite, and its gradient is not
        return value * torch.nan if broken == "loss" else (value * 0).sqrt()

    with pytest.raises(RefusalError, match=f"The {broken} is not a number in step 4: train with a smaller rate. The w"):
        train(model, loss, Recipe(steps=9, rate=0.1), kept=tmp_path / "kept", trained=dict(model.named_parameters()))
    kept = load_file(tmp_path / "kept.safetensors")
    # A loss of NaN comes from broken weights, so the weights before them are kept.
    good = seen[2] if broken == "loss" else seen[3]
    assert torch.equal(kept["weight"], good)
    assert torch.equal(model.weight, good)
    assert len(kept["losses"]) == (2 if broken == "loss" else 3)
