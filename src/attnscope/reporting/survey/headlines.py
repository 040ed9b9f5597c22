"""The few numbers a person wants first, as plain data: page and terminal print the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnscope.core.numerals import numeral
from attnscope.core.words import count
from attnscope.records.survey.baseline import raised, uniform_attention
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Headline:
    label: str
    value: str
    note: str


def headlines(survey: Survey, table: pandas.DataFrame, thresholds: Thresholds | None = None) -> tuple[Headline, ...]:
    """Size, residual, rank, sinks, spike, NaN. A measure that was not taken is left out."""
    chosen = thresholds or Thresholds()
    found: list[Headline] = []
    for stack in survey.stacks:
        rows = table[table["stack"] == stack]
        which = f" ({stack})" if len(survey.stacks) > 1 else ""
        found += [_size(survey, rows, stack, which)]
        found += _ends(survey, rows, "relative_residual", "Residual left at the end", which)
        found += _ends(survey, rows, "effective_rank", "Effective rank at the end", which)
        found += _sinks(survey, rows, stack, which, chosen.sink_mass)
        found += _spike(rows, which)
    broken = int(table["nonfinite"].sum())
    if broken:
        found.append(Headline("NaN or infinite", f"{broken:,}", "observations left out of every number"))
    return tuple(found)


def _size(survey: Survey, rows: pandas.DataFrame, stack: str, which: str) -> Headline:
    heads = rows[rows["head"].notna()]
    if heads.empty:
        depth = int(rows["layer"].max())
        return Headline(f"Blocks{which}", f"{depth:,}", "no number per head was taken")
    layers, per_layer = heads["layer"].nunique(), int(heads["head"].max()) + 1
    every = heads[["site", "layer", "head"]].drop_duplicates()
    crossing = int((every["site"] == "cross").sum())
    note = f"{count(len(every), 'head')} in all" + (f", {crossing:,} of them in cross-attention" if crossing else "")
    stacks = survey.provenance.get("model", {}).get("stacks", [])
    others = len(next((s.get("kinds", {}) for s in stacks if s["name"] == stack), {}))
    if others:
        note += f"; {count(others, 'more block')} without softmax attention"
    return Headline(f"Blocks × heads{which}", f"{layers} × {per_layer}", note)


def _ends(survey: Survey, rows: pandas.DataFrame, measure: str, label: str, which: str) -> list[Headline]:
    column = rows[(rows["measure"] == measure) & (rows["site"] == "stream")]
    column = column[np.isfinite(column["mean"])].sort_values("layer")
    if column.empty:
        return []
    first, last = column.iloc[0], column.iloc[-1]
    return [
        Headline(
            f"{label}{which}",
            numeral(float(last["mean"])),
            f"{survey.cards[measure].unit}; {numeral(float(first['mean']))} entering block {first['layer']}".lstrip(
                "; "
            ),
        )
    ]


def _sinks(survey: Survey, rows: pandas.DataFrame, stack: str, which: str, threshold: float) -> list[Headline]:
    """The share of heads that the finding about sinks counts, with the same bar."""
    masses = rows[(rows["measure"] == "sink_mass") & (rows["site"] == "self")]
    masses = masses[masses["part"] == survey.cards["sink_mass"].parts[0]] if len(masses) else masses
    means = masses["mean"].to_numpy(float)
    means = means[np.isfinite(means)]
    if not means.size:
        return []
    bar = raised(threshold, uniform_attention(survey, stack, "self"))
    share = float((means > bar).mean())
    return [Headline(f"Heads that sink{which}", f"{share:.0%}", f"put over {bar:.3g} of their mass on the first token")]


def _spike(rows: pandas.DataFrame, which: str) -> list[Headline]:
    spikes = rows[(rows["measure"] == "spike") & np.isfinite(rows["peak"])]
    if spikes.empty:
        return []
    top = spikes.loc[spikes["peak"].idxmax()]
    spot = top["peak_where"] or {}
    last = int(rows.loc[rows["site"] == "stream", "layer"].max())
    block = f"{'inside' if top['site'] == 'middle' else 'entering'} block {top['layer']}"
    after = (top["site"], top["layer"]) == ("stream", last)
    place = ["after the last block" if after else block] + [f"{k} {spot[k]}" for k in ("token", "channel") if k in spot]
    return [Headline(f"Largest activation{which}", numeral(float(top["peak"])), ", ".join(place))]
