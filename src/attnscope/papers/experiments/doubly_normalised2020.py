"""Attention that does not explain away: normalising over queries first, no key is ignored (arXiv:2009.14308).

guarantee  the smallest mass that any key receives, for random logits of all sizes and if all queries avoid one key
mixture    the paper's illustration, with queries as cluster centres and keys as points: is every cluster found?
learning   models that differ only in attention, trained in the same way on sorting and convex hulls
lost keys  how many keys trained softmax attention explains away, in the embedded language model

Differences from the paper: we use small tasks instead of its benchmarks. A key counts as explained away if its
mass is below a tenth of its uniform share (below 1/n, our first limit, no model had any); keys that few queries see are
not counted. The
heads of the embedded model were penalised, late in training, for attention off the first token (see its card), so the
keys it loses say little about other models. (An earlier version without the penalty lost 0.6% of its keys; we have not
repeated that measurement.) Double normalisation sums over later queries and cannot be causal: the models are encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment, median
from attnscope.papers.models.nano import Attend, Config, Nano, scaled_dot_product
from attnscope.papers.models.tasks import Task
from attnscope.papers.trials import explaining_away, trained_alike
from attnscope.papers.trials.curves import Rows, select, steps
from attnscope.papers.trials.explaining_away import CLUSTERS
from attnscope.papers.trials.trained_alike import has_learned
from attnscope.variants.doubly_normalised import doubly_normalised
from attnscope.variants.hybrid_normalised import hybrid_normalised

PAPER = "2009.14308"
CORES: Mapping[str, Callable[[Config], Attend]] = {
    "softmax": lambda _: scaled_dot_product,
    "doubly_normalised": partial(trained_alike.Core, doubly_normalised),
    "hybrid_normalised": partial(trained_alike.Core, hybrid_normalised),
}
SHAPE, SHORT = trained_alike.Shape(), trained_alike.Training(steps=250)


@dataclass(frozen=True)
class Params:
    tokens: int = 64
    dim: int = 16
    sizes: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)  # scales of the random queries
    trained: str | None = "pocket"  # the model whose patterns are measured: the embedded one, or a folder
    sequences: int = 2
    points: int = 60
    bandwidth: float = 0.7
    steps: int = 10
    shape: trained_alike.Shape = SHAPE
    training: trained_alike.Training = SHORT


FULL = replace(
    Params(),
    points=300,
    steps=20,
    shape=trained_alike.Shape(layers=4, data=(10000, 500)),
    training=trained_alike.Training(steps=1000),
)


def masses(params: Params, seed: int) -> dict[str, Any]:
    query, key = explaining_away.disliked(params.tokens, params.dim, seed)
    received = {
        kind: explaining_away.key_mass(explaining_away.pattern_of(kind, query, key, 1.0))[0, 0].sort().values
        for kind in explaining_away.KINDS
    }
    walks = {
        kind: explaining_away.clustering(kind, params.points, params.bandwidth, params.steps, seed)
        for kind in explaining_away.KINDS
    }
    return {
        "seed": seed,
        "n_times_least": explaining_away.least_masses(params.tokens, params.dim, seed, params.sizes),
        "against_one_key": {kind: values.tolist() for kind, values in received.items()},
        "hated": {
            kind: explaining_away.mass_of_disliked_key(kind, params.tokens, params.dim, seed)
            for kind in explaining_away.KINDS
        },
        "not_hated": {
            kind: explaining_away.mass_of_disliked_key(kind, params.tokens, params.dim, seed, by=0.0)
            for kind in explaining_away.KINDS
        },
        "clusters": walks,
        "explained_away": params.trained
        and explaining_away.explained_away_in(params.trained, params.sequences, params.tokens, seed),
    }


def lost_keys_and_shares(model: Nano, task: Task) -> Mapping[str, Any]:
    """Return the share of keys that softmax would lose with these queries and keys, and the hybrid's trained shares."""
    shares = [tensor.detach() for name, tensor in model.named_parameters() if name.endswith("share")]
    kept = [float(value) for tensor in shares for value in tensor.clamp(0, 1)]
    return {**explaining_away.explained_away_by_queries(model, task), "shares": kept}


CLAIMS = claims(
    PAPER,
    """
    every_key_keeps_a_share: Doubly normalised, every key has a mass of at least 1/n, for any scores.
        expected: n times the smallest mass is at least 1, over scores of all sizes (theorem)
        holds: n_times_least_mass_doubly_normalised >= 1; fails: n_times_least_mass_doubly_normalised < 0.99
    softmax_has_no_such_bound: Under softmax a key that every query finds unlikely loses all its mass.
        expected: mass at most 1e-60 where every logit is lower by 170 (earlier, with such scores: 1.5e-72)
        holds: mass_of_hated_key_softmax <= 1e-60; fails: mass_of_hated_key_softmax >= 1e-3
    the_hated_key_is_kept: Doubly normalised, that key keeps the mass that it has with ordinary logits.
        expected: at most 1e-9 of it lost: a term common to all queries cancels (derived; a logit of 170 rounds by
            1e-13)
        holds: mass_lost_by_hated_key_doubly_normalised <= 1e-9, mass_lost_by_hated_key_doubly_normalised >= -1e-9
        fails: mass_lost_by_hated_key_doubly_normalised >= 0.5
    softmax_centres_miss_a_cluster: Centres that attend by softmax miss a cluster in which none of them begins.
        expected: the nearest stays at least 3 away (clusters are 4 to 4.5 apart; our set-up of the paper's picture)
        holds: distance_to_missed_cluster_softmax >= 3; fails: distance_to_missed_cluster_softmax <= 0.5
    doubly_normalised_centres_find_it: Doubly normalised, every cluster gets a centre.
        expected: the nearest comes within .5 of it, and of the others (our set-up of the paper's picture)
        holds: distance_to_missed_cluster_doubly_normalised <= 0.5, distance_to_other_clusters_doubly_normalised <= 0.5
        fails: distance_to_missed_cluster_doubly_normalised >= 3
    trained_softmax_explains_away: Trained softmax attention explains keys away.
        expected: of keys that half of the queries see, at least 1% have less than a tenth of what uniform attention
            gives them, in the embedded language model (our limits; the paper uses larger models). Weak evidence: its
            heads were penalised for attention off the first token
        holds: keys_explained_away >= 0.01
    """,
    *(
        f"""
        {kind}_learns_{task}: Trained alike, {kind.replace("_", " ")} attention is as good as softmax at {task}.
            expected: accuracy at most .02 below softmax, which is .1 above guessing (our limits and tasks)
            holds: {task}_softmax_over_{kind} <= 0.02; fails: {task}_softmax_over_{kind} >= 0.15
            given: {has_learned(task)}
        """
        for kind in ("doubly_normalised", "hybrid_normalised")
        for task in trained_alike.TASKS
    ),
)


@experiment(
    title="Attention that does not explain away",
    paper=PAPER,
    summary="Normalised over queries first, no key is lost: the bound, the picture of clusters, and what it learns.",
    advice=(
        "Normalising over queries first guarantees that no key is ignored, which helps where every token counts "
        "(clusters, sets, alignment). Our language model ignores most of its keys, but its heads were trained to rest "
        "on the first token; the version without that training ignored fewer than one in a hundred. So measure your "
        "own model before you repair anything. It needs all queries at once, so it cannot be used in a causal decoder. "
        "If you want the guarantee without losing accuracy, the hybrid with a learned mix is the safer choice."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "15 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def doubly_normalised2020(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    known = [session.part(f"masses-{seed}", partial(masses, params, seed)) for seed in seeds]
    models = trained_alike.train_kinds(params.shape, params.training, CORES, seeds, session, also=lost_keys_and_shares)
    measured: dict[str, list[float]] = {}
    for kind in explaining_away.KINDS:
        measured |= {
            f"n_times_least_mass_{kind}": [row["n_times_least"][kind] for row in known],
            f"mass_of_hated_key_{kind}": [row["hated"][kind] for row in known],
            f"mass_lost_by_hated_key_{kind}": [1 - row["hated"][kind] / row["not_hated"][kind] for row in known],
            f"distance_to_missed_cluster_{kind}": [row["clusters"][kind][-1][-1] for row in known],
            f"distance_to_other_clusters_{kind}": [max(row["clusters"][kind][-1][:-1]) for row in known],
        }
    measured["keys_explained_away"] = [row["explained_away"] for row in known if params.trained]
    measured |= trained_alike.accuracy_numbers(models, tuple(CORES))
    return Result(measured, (*known, *models), figures(known, models), remarks(measured, models))


def figures(known: Rows, models: Rows) -> tuple[Figure, ...]:
    ranked = [
        Point.over([row["against_one_key"][kind][rank] for row in known], rank + 1, kind)
        for kind in explaining_away.KINDS
        for rank in range(len(known[0]["against_one_key"][kind]))
    ]
    ranked += [Point(at.x, 1 / len(known[0]["against_one_key"]["softmax"]), "1/n", dashed=True) for at in ranked]
    walks = [
        point
        for which, panel in enumerate(("cluster 1", "cluster 2", "cluster 3: no centre begins here"))
        for kind in explaining_away.KINDS
        for point in steps([[far[which] for far in row["clusters"][kind]] for row in known], kind, panel)
    ]
    title = "Mass of every key when all queries avoid one of them"
    order = "Keys in order of their mass; median and range over seeds."
    nearest = "Distance from the middle of each cluster to the nearest centre; median and range over seeds."
    clusters = f"Centres that attend to points in {len(CLUSTERS)} clusters"
    return (
        Figure("masses", title, order, "key", "mass", tuple(dict.fromkeys(ranked)), log=True),
        Figure("clusters", clusters, nearest, "steps", "distance", tuple(walks)),
        trained_alike.accuracy_figure(models, tuple(CORES)),
    )


def remarks(measured: Mapping[str, Sequence[float]], models: Rows) -> tuple[str, ...]:
    lost = [value for value in measured["keys_explained_away"] if value is not None]
    trained = f"{100 * median(lost):.1f}% of the keys of the trained language model" if lost else "not measured"
    small = 100 * max(row["explained_away"] for row in select(models, kind="softmax"))
    shares = sorted(share for row in select(models, kind="hybrid_normalised") for share in row["shares"])
    behind = max(median(measured[f"{task}_softmax_over_doubly_normalised"]) for task in trained_alike.TASKS)
    return (
        f"What follows: keys with less than a tenth of what uniform attention would give them were {trained}, and in "
        f"the small models trained here at most {small:.1f}%. A lost key is not a defect by itself: a head may have "
        "learned to drop it. Double normalisation is for encoders in which every token counts (retrieval, clustering, "
        f"summaries), not for decoders. Alone it was up to {max(behind, 0.0):.3f} behind softmax here: begin with "
        "hybrid_normalised, which starts as softmax.",
        f"The hybrid begins at a share of 0; after training shares lie between {shares[0]:.3f} and {shares[-1]:.3f}.",
    )
