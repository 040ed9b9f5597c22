"""The figures and remarks of `induction2024`, from its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attnscope.core.experiment import Figure, Point, median
from attnscope.papers.trials.curves import Row, Rows, by_seed, curve, select
from attnscope.papers.trials.induction_training import uniform_share

FLOOR = math.log(1 + 2 / math.e)


def figures(rows: Rows, phases: Sequence[int], reference: Mapping[int, float], tokens: int) -> tuple[Figure, ...]:
    """Draw the rows; `reference` are losses by epoch, `tokens` the number of random tokens that came twice."""
    together, apart = (thinned(select(rows, part=name)) for name in ("together", "phases"))
    losses = [
        *curve(together, "epoch", "loss", "all weights together"),
        *curve(apart, "epoch", "loss", "one kind after the other"),
        *(Point(epoch, loss, "published or measured before", dashed=True) for epoch, loss in reference.items()),
    ]
    caption = "Cross entropy of shares taken as logits; median and range over seeds."
    drawn = [Figure("loss", "Loss on held-out texts", caption, "epoch", "loss", tuple(losses))]
    in_phases = f"Sets to epoch {phases[0]}, lags to {sum(phases[:2])}, then sharpness."
    for name, how, order, some in (
        ("together", "all together", "Sets first, then sharpness and lags.", together),
        ("phases", "one kind after the other", in_phases, apart),
    ):
        caption = f"{order} Sharpness a is divided by its last value."
        title = f"What is learned when: {how}"
        drawn.append(Figure(f"learned_{name}", title, caption, "epoch", "share", tuple(learned_curves(some))))
    title, axes = "Information of each set of parents", ("set of lags", "information, of the best")
    caption = "Modified chi^2 information over that of the best set; one colour for each kind of chain."
    bars = tuple(bars_of(select(rows, part="sets")))
    drawn.append(Figure("information", title, caption, *axes, bars, kind="bars"))
    for name, title in (("pocket", "the embedded model"), ("smollm2", "SmolLM2-135M")):
        if heads := select(rows, part=name):
            drawn.append(models_figure(name, title, heads, tokens))
    return tuple(drawn)


def thinned(rows: Rows) -> list[Row]:
    """Keep every epoch up to 10, then every fifth."""
    return [row for row in rows if row["epoch"] <= 10 or row["epoch"] % 5 == 0]


def learned_curves(rows: Rows) -> list[Point]:
    named = {"share": "p of both parents", "lag_1": "head 1 on lag 1", "lag_2": "head 2 on lag 2"}
    last = {row["seed"]: row["sharpness"] for row in rows}
    relative = [{**row, "sharpness": row["sharpness"] / last[row["seed"]]} for row in rows]
    points = [point for column, series in named.items() for point in curve(rows, "epoch", column, series)]
    return points + curve(relative, "epoch", "sharpness", "sharpness a, of its last")


def bars_of(rows: Rows) -> list[Point]:
    points = []
    for parents in dict.fromkeys(tuple(row["parents"]) for row in rows):
        told = [row["told"] for row in rows if tuple(row["parents"]) == parents]
        for lags in told[0]:
            relative = [by_lags[lags] / max(by_lags.values()) for by_lags in told]
            points.append(Point.over(relative, lags, "parents " + " and ".join(map(str, parents))))
    return points


def models_figure(name: str, title: str, heads: Rows, tokens: int) -> Figure:
    """Draw the best head of every block, by both measures."""
    seeds = list(dict.fromkeys(row["seed"] for row in heads))
    points = [
        Point.over(
            [max(row[column] for row in select(some, layer=layer)) for some in by_seed(heads, seeds)], layer, label
        )
        for column, label in (("previous", "on the token before"), ("induction", "behind the last occurrence"))
        for layer in sorted({row["layer"] for row in heads})
    ]
    points += [Point(p.x, uniform_share(tokens), "uniform", dashed=True) for p in points[: len(points) // 2]]
    caption = f"{tokens} random tokens, twice: the largest attention of any head in each block."
    words = (f"heads_{name}", f"Induction heads in {title}", caption)
    return Figure(*words, "block", "share of attention", tuple(points))


def remarks(measured: Mapping[str, Sequence[float]], missing: bool) -> tuple[str, ...]:
    words = (
        "What follows: a context is learned in an order, the set of heads first: look at heads (attnscope scan MODEL "
        "repeated --measures induction,previous_token), which tell more about a young run than its loss. Training "
        "finds what is most informative about the next token given how often it occurs: rare contexts lose against "
        "shorter ones.",
        "One kind of weight after the other, the loss falls only in the last phase "
        f"({median(measured['part_of_the_fall_in_phase_1']):.2%} of its fall in the first, "
        f"{median(measured['part_of_the_fall_in_phase_2']):.2%} in the second): sharpness is held at .01 until then. "
        "Trained together there is no plateau.",
        f"The loss takes shares for logits, so its floor is {FLOOR:.4f} and not 0; a model that knows all rules is "
        "above it.",
    )
    return (*words, "SmolLM2 was not measured: tools/fetch_models.py brings its weights.") if missing else words
