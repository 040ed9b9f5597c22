"""Bands: a number that jumps and stays is named with its step; drift, noise and single looks are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnscope.commands.timeline.bands import HELD, LOOKS, departures
from attnscope.commands.timeline.chart import telling
from attnscope.commands.timeline.course import course_chart
from attnscope.commands.timeline.record import Timeline
from attnscope.commands.timeline.words import moved_first
from attnscope.commands.watch.look import Look
from attnscope.commands.watch.training_state import TrainingState
from attnscope.commands.watch.values import Values
from tests.commands.timeline.sample import header


def run_of(entropy: np.ndarray, losses: np.ndarray) -> Timeline:
    """Return a run with a look every 10 steps; `entropy` is [looks, blocks]."""
    looks = tuple(
        Look(
            10 * n,
            float(loss),
            float(n),
            100 * n,
            0.1,
            (Values.of("entropy", "value", "model", "self", np.repeat(row[:, None], 2, axis=1)),),
            training=TrainingState(learning_rate=1e-3, gradient_norm=1.0 + 0.1 * (n % 3), mean_loss=float(loss)),
        )
        for n, (row, loss) in enumerate(zip(entropy, losses, strict=True))
    )
    return Timeline("run", header(layers=3, heads=2), looks)


def noisy(seed: int = 0, looks: int = 40) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return 2.0 + 0.05 * draw.normal(size=(looks, 3)), 3.0 + 0.1 * draw.normal(size=looks)


def test_a_jump_is_named_with_its_block_and_its_lead_over_the_loss() -> None:
    entropy, losses = noisy()
    entropy[24:, 1] -= 1.2
    losses[30:] += 4.0
    run = run_of(entropy, losses)
    first, second = departures(run)
    assert (first.step, first.name, first.layer, second.step, second.name) == (240, "entropy", 1, 300, "loss")
    assert first.low < first.high
    assert first.value < first.low
    (sentence,) = moved_first(run)
    assert sentence.startswith("Attention entropy in block 1 leaves its band at step 240 (")
    assert sentence.endswith("; 60 steps before the loss.")
    assert telling(run) == ("entropy", "value", "model", "self")


def test_noise_drift_and_a_single_look_stay_in_their_bands() -> None:
    for seed in range(10):
        entropy, losses = noisy(seed)
        entropy += 0.02 * np.arange(40)[:, None]  # a slow drift
        entropy[30, 2] = 9.0  # one odd batch
        losses -= 0.03 * np.arange(40)
        run = run_of(entropy, losses)
        assert not departures(run)
        assert moved_first(run) == (f"No number left the band of the {LOOKS} looks before it for {HELD} looks.",)


def test_a_short_run_says_nothing_about_bands() -> None:
    entropy, losses = noisy(looks=LOOKS)
    assert moved_first(run_of(entropy, losses)) == ()


def test_a_loss_that_leaves_first_is_named() -> None:
    entropy, losses = noisy()
    losses[30:] += 4.0
    (sentence,) = moved_first(run_of(entropy, losses))
    assert sentence.startswith("The loss leaves its band first, at step 300 (")


def test_the_course_has_loss_and_map_first_and_one_step_axis() -> None:
    run = run_of(*noisy())
    parts = course_chart(run, telling(run), 720).to_dict()["vconcat"]
    assert [part["title"] for part in parts] == [
        *("Loss", "Attention entropy", "Learning rate", "Gradient norm", "Tokens a second")
    ]
    domains = []
    for part in parts:
        layer = part["layer"][0] if "layer" in part else part
        domains.append((layer["encoding"]["x"]["scale"]["domain"], part["width"]))
    assert domains == [domains[0]] * len(parts)
    old = replace(run, looks=tuple(replace(look, training=None) for look in run.looks))
    parts = course_chart(old, telling(old), 720).to_dict()["vconcat"]
    assert [part["title"] for part in parts] == ["Loss", "Attention entropy", "Tokens a second"]
    assert np.isnan(old.training("learning_rate")).all()


def test_the_training_state_survives_a_file_and_old_files_have_none() -> None:
    run = run_of(*noisy())
    again = Timeline.from_json(run.to_json())
    for name in ("learning_rate", "gradient_norm", "mean_loss"):
        np.testing.assert_allclose(again.training(name), run.training(name), rtol=1e-5)
    assert again.looks[0].training == again.from_json(again.to_json()).looks[0].training
    line = {name: value for name, value in run.looks[0].to_json().items() if name != "training"}
    assert Look.from_json(line).training is None
