"""The figures and the words of `induction2024`, from its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.core.experiment import Figure, Point, median
from attnscope.papers.trials.curves import by_seed, curve
from attnscope.papers.trials.induction_training import uniform_share

Rows = Sequence[Mapping[str, Any]]
FLOOR = math.log(1 + 2 / math.e)


def part(rows: Rows, name: str, **which: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["part"] == name and all(row[key] == value for key, value in which.items())]


def figures(rows: Rows, phases: Sequence[int], said: Mapping[int, float], tokens: int) -> tuple[Figure, ...]:
    """`phases` are their epochs, `said` losses of others by epoch, `tokens` how many random ones came twice."""
    both, apart = (drawn_rows(part(rows, name)) for name in ("together", "phases"))
    named = {"share": "p of both parents", "lag_1": "head 1 on lag 1", "lag_2": "head 2 on lag 2"}
    drawn = [
        Figure(
            "loss",
            "Loss on texts not trained on",
            "Cross entropy of shares taken as logits; median and range over seeds.",
            "epoch",
            "loss",
            (
                *curve(both, "epoch", "loss", "all weights together"),
                *curve(apart, "epoch", "loss", "one kind after the other"),
                *(Point(epoch, loss, "published or measured before", dashed=True) for epoch, loss in said.items()),
            ),
        ),
        *(
            Figure(
                f"learned_{name}",
                title,
                f"{words} Sharpness a is divided by its last value.",
                "epoch",
                "share",
                tuple(point for column, series in named.items() for point in curve(some, "epoch", column, series))
                + tuple(curve(relative(some), "epoch", "sharpness", "sharpness a, of its last")),
            )
            for name, title, words, some in (
                ("together", "What is learned when: all together", "Sets first, then sharpness and lags.", both),
                (
                    "phases",
                    "What is learned when: one kind after the other",
                    f"Sets to epoch {phases[0]}, lags to {sum(phases[:2])}, then sharpness.",
                    apart,
                ),
            )
        ),
        Figure(
            "information",
            "What each set of parents tells",
            "Modified chi^2 information over that of the best set; one colour for each kind of chain.",
            "set of lags",
            "information, of the best",
            tuple(bars_of(part(rows, "sets"))),
            kind="bars",
        ),
    ]
    for name, title in (("pocket", "the embedded model"), ("smollm2", "SmolLM2-135M")):
        if heads := part(rows, name):
            drawn.append(models_figure(name, title, heads, tokens))
    return tuple(drawn)


def drawn_rows(rows: Rows) -> list[Mapping[str, Any]]:
    """Every epoch to 10, then every fifth: lines, and not rows of dots."""
    return [row for row in rows if row["epoch"] <= 10 or row["epoch"] % 5 == 0]


def relative(rows: Rows) -> list[dict[str, Any]]:
    last = {row["seed"]: row["sharpness"] for row in rows}
    return [dict(row) | {"sharpness": row["sharpness"] / last[row["seed"]]} for row in rows]


def bars_of(rows: Rows) -> list[Point]:
    points = []
    for parents in dict.fromkeys(tuple(row["parents"]) for row in rows):
        mine = [row for row in rows if tuple(row["parents"]) == parents]
        for chosen in mine[0]["told"]:
            told = [row["told"][chosen] / max(row["told"].values()) for row in mine]
            points.append(Point.over(told, chosen, "parents " + " and ".join(map(str, parents))))
    return points


def models_figure(name: str, title: str, heads: Rows, tokens: int) -> Figure:
    """The best head of every layer, by both measures."""
    points = [
        Point.over(
            [max(row[column] for row in some if row["layer"] == layer) for some in by_seed(heads, seeds_of(heads))],
            layer,
            series,
        )
        for column, series in (("previous", "on the token before"), ("induction", "behind the last occurrence"))
        for layer in sorted({row["layer"] for row in heads})
    ]
    points += [Point(p.x, uniform_share(tokens), "all alike", dashed=True) for p in points[: len(points) // 2]]
    return Figure(
        f"heads_{name}",
        f"Induction heads in {title}",
        f"{tokens} random tokens, twice: the largest attention of a head of each layer.",
        "layer",
        "share of attention",
        tuple(points),
    )


def seeds_of(rows: Rows) -> list[int]:
    return list(dict.fromkeys(row["seed"] for row in rows))


def remarks(measured: Mapping[str, Sequence[float]], missing: bool) -> tuple[str, ...]:
    said = (
        "What follows: a context is learned in an order, the set of heads first: look at heads (attnscope scan MODEL "
        "repeated --measures induction,previous_token), which tell more about a young run than its loss. And what is "
        "found is what tells most about the next token for how often it comes: rare contexts lose against "
        "shorter ones.",
        "One kind of weight after the other, the loss falls in the last phase only "
        f"({median(measured['part_of_the_fall_in_phase_1']):.2%} of its fall in the first, "
        f"{median(measured['part_of_the_fall_in_phase_2']):.2%} in the second). It could not be otherwise: sharpness "
        "is held at .01 until then. Trained together there is no plateau.",
        f"The loss takes shares for logits, so that its floor is {FLOOR:.4f} and not 0; that of a model that knows all "
        "rules is higher.",
    )
    return (*said, "SmolLM2 was not looked at: tools/fetch_models.py brings its weights.") if missing else said
