"""A compilation in words: lines of (label, value, note), the same in a terminal and in a notebook.

They are made from the plain data of `Compiled.to_json()`, so a certificate that was read from a file reads the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.charts.numerals import numeral

Line = tuple[str, str, str]
NAMED_ROWS = 8


def certificate_lines(data: Mapping[str, Any]) -> list[Line]:
    """What a head reaches, against what was asked."""
    lines = [
        ("width", f"{data['d']:,}", data["verdict"]),
        ("lower bound", f"{data['lower_bound']:,}", data["lower_bound_reason"]),
        ("ratio error", number(data["ratio_error"]), _asked(data, "ratio_error")),
        ("leak", number(data["leak"]), _asked(data, "leak")),
        ("zero / non-zero", number(data["zero_ratio"]), "the largest in a row"),
        ("largest logit", number(data["max_logit"]), norm_words(data)),
        ("method", data["method"], data["why"].removeprefix(f"{data['method']}, ")),
        ("seed", str(data["seed"]), try_words(data)),
    ]
    if data["failing"]:
        lines.insert(4, ("failing rows", f"{data['failing']:,}", row_words(data["failing_rows"], data["failing"])))
    return lines


def title_words(data: Mapping[str, Any]) -> str:
    """Generated patterns have their size in their name; files do not."""
    name = str(data["pattern"])
    size = "" if "n=" in name else f": {data['n']:,} × {data['n_keys']:,}, k = {data['k']}{', causal' * data['causal']}"
    return f"{name}{size}{', universal keys' * data['universal']}, {data['dtype']}"


def row_words(rows: Sequence[int], count: int) -> str:
    named = ", ".join(str(row) for row in rows[:NAMED_ROWS])
    return named if count <= min(len(rows), NAMED_ROWS) else f"{named} and {count - min(len(rows), NAMED_ROWS):,} more"


def norm_words(data: Mapping[str, Any]) -> str:
    return f"largest norms: query {number(data['query_norm'])}, key {number(data['key_norm'])}"


def try_words(data: Mapping[str, Any]) -> str:
    count = len(data["tried"])
    return f"{count} {'head' if count == 1 else 'heads'} tried in {numeral(data['seconds'])} s"


def number(value: float | None) -> str:
    """A number of a JSON file, where what is not finite became null."""
    return "not finite" if value is None or not math.isfinite(value) else numeral(value)


def _asked(data: Mapping[str, Any], name: str) -> str:
    met = data[name] is not None and data[name] <= data[f"asked_{name}"]
    words = f"worst row, at most {numeral(data[f'asked_{name}'])} was asked for; mean {number(data[f'mean_{name}'])}"
    return words if met else f"TOO LARGE: {words}"


def answer_words(data: Mapping[str, Any]) -> str:
    """The answer in a sentence: what was enough, and what cannot be enough."""
    found = [need for need in data["needs"] if need["d"] is not None]
    floor = f"keys that serve every pattern need at least {data['universal_lower_bound']}"
    if not any(need["seeds"] for need in data["needs"]):
        return f"Nothing was measured in the time given (--budget gives more); {floor}."
    if not found:
        return f"No construction reaches the accuracy; {floor}."
    best = min(found, key=lambda need: int(need["d"]))
    return f"Width {best['d']} is enough for one pattern ({best['method']}); {floor}."


def bound_lines(data: Mapping[str, Any]) -> list[Line]:
    return [
        (str(bound["name"]), f"{bound['width']:,}", str(bound["statement"]))
        for bound in sorted(data["bounds"], key=lambda bound: -int(bound["width"]))
    ] + [("logit floor", number(data["logit_floor"]), "the longest query times the longest key is at least this")]


def need_lines(data: Mapping[str, Any]) -> list[Line]:
    """Narrowest first, then those without a width; the theorem's own width beside them."""
    needs = sorted(data["needs"], key=lambda need: math.inf if need["d"] is None else need["d"])
    lines = [(str(need["method"]), "–" if need["d"] is None else f"{need['d']:,}", _need_words(need)) for need in needs]
    return [*lines, ("the theorem", f"{data['theorem_width']:,}", "what arXiv:2106.03764 guarantees, by formula")]


def _need_words(need: Mapping[str, Any]) -> str:
    if not need["seeds"]:
        return str(need["note"])
    widths = ", ".join("none" if width is None else str(width) for width in need["widths"])
    words = f"{widths} at {'seed' if len(need['seeds']) == 1 else 'seeds'} {', '.join(map(str, need['seeds']))}"
    words += f"; largest logit {number(need['max_logit'])}" if need["max_logit"] is not None else ""
    return f"{words}; {need['note']}" if need["note"] else words
