"""What a decomposition into paths says, in sentences and tables; all from the plain data of `PathReport.to_json()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.charts.numerals import numeral
from attnscope.charts.path_panels import seen_lengths
from attnscope.survey.words import count

RANK_ONE = 0.1  # a relative residual below which the rows of a sum are nearly one row
CANCEL = 10.0  # energies this much above the square of the sum: paths of the length cancel

Data = Mapping[str, Any]


def sentences(data: Data) -> tuple[str, ...]:
    """Where the target comes from, what suffices, what cannot be left out, which heads, and how exact this is."""
    said = [_half(data), *_suffices(data), *_without(data), *_heads(data), *_players(data), *_largest(data)]
    return (*said, *_rank(data), *_cancelling(data), _exact(data))


def _half(data: Data) -> str:
    """The smallest k from which on the sum of lengths up to k stays within half of the whole."""
    whole, reached, sums = data["value"], 0.0, []
    for row in data["lengths"]:
        reached += row["value"]
        sums.append(reached)
    k = _from_on([abs(one - whole) <= abs(whole) / 2 for one in sums])
    start = f"The {data['target']} is {numeral(whole)}"
    if k is None:
        return f"{start}."
    near = _from_on([abs(one - whole) <= abs(whole) / 100 for one in sums])
    more = "" if near is None or near == k else f", and all but a hundredth from paths through {at_most(near)}"
    return f"{start}. Half of it or more comes from paths through {at_most(k)}{more}."


def _suffices(data: Data) -> list[str]:
    own = data["lengths"][-1]["up_to"]
    if own["predicted"] is None:
        k = _from_on([row["up_to"]["distance"] < 0.1 for row in data["lengths"]])
        return [] if k is None else [f"Paths through {at_most(k)} give the model's states to within a tenth."]
    same = [row["up_to"]["predicted"] == own["predicted"] for row in data["lengths"]]
    k = _from_on(same)
    assert k is not None
    now = data["lengths"][k]["up_to"]
    chances = f"with probability {numeral(now['probability'])} (the whole model: {numeral(own['probability'])})"
    said = [f"Paths through {at_most(k)} suffice to predict '{own['predicted']}', {chances}."]
    if k > 0:
        before = data["lengths"][k - 1]["up_to"]
        said[0] += f" With {at_most(k - 1)} the model would say '{before['predicted']}'."
    if own["loss"] is not None:
        close = _from_on([row["up_to"]["loss"] <= own["loss"] + 0.05 for row in data["lengths"]])
        first, last = data["lengths"][0]["up_to"]["loss"], own["loss"]
        if close is not None:
            said.append(
                f"Over the whole text, the next-token loss {'falls' if last < first else 'goes'} from {numeral(first)} "
                f"with no head to {numeral(last)} with all paths, and paths through {at_most(close)} come within "
                "0.05 of that."
            )
    return said


def _without(data: Data) -> list[str]:
    own = data["lengths"][-1]["up_to"]["predicted"]
    if own is None:
        return []
    changed = [row for row in data["lengths"] if row["without"]["predicted"] != own]
    if not changed:
        return [f"Leaving out any one length of paths, the model would still say '{own}'."]
    words = [f"through {exactly(row['length'])} the model would say '{row['without']['predicted']}'" for row in changed]
    return [f"Without paths {'; without those '.join(words[:3])}."]


def _heads(data: Data) -> list[str]:
    places = [(value, layer, head) for layer, row in enumerate(data["head_values"]) for head, value in enumerate(row)]
    if not places:
        return []
    total = sum(value for value, _, _ in places)
    best, worst = max(places), min(places)
    largest = sorted(places, key=lambda place: -abs(place[0]))[: max(1, len(places) // 10)]
    weight = sum(abs(value) for value, _, _ in places)
    said = f"Head {best[2]} of layer {best[1]} is worth most, {_signed(best[0])}"
    if worst[0] < 0:
        said += f", and head {worst[2]} of layer {worst[1]} works most against it, {_signed(worst[0])}"
    share = sum(abs(value) for value, _, _ in largest) / weight if weight else 0.0
    tenth = f"; the largest tenth of {count(len(places), 'head')} carries {100 * share:.0f}% of what heads move"
    return [f"{said} (all heads together: {_signed(total)}{tenth})."]


def _players(data: Data) -> list[str]:
    players = data["players"]
    if players is None or not any(players["mlps"]):
        return []
    heads, mlps = (sum(sum(row) for row in players[name]) for name in ("heads", "mlps"))
    return [
        f"With MLPs as players beside heads, MLPs are worth {_signed(mlps)} and heads {_signed(heads)}; with neither, "
        f"{numeral(players['nothing'])} is left."
    ]


def _largest(data: Data) -> list[str]:
    longer = [chain for chain in data["top"] if chain["heads"]]
    if not longer:
        return []
    return [
        f"The largest single path through a head is {chain_words(longer[0])}: {_signed(longer[0]['contribution'])}."
    ]


def _rank(data: Data) -> list[str]:
    known = [(row["length"], row["residual"], row["residual_share"]) for row in data["lengths"]]
    if known[0][1] is None:
        return []
    short = max(known, key=lambda one: one[2])
    said = (
        f"What tells tokens apart at the end comes to {100 * short[2]:.0f}% from paths through {exactly(short[0])} "
        f"(relative residual of the last stream: {numeral(data['whole_residual'])})."
    )
    first = _from_on([residual < RANK_ONE for _, residual, _ in known])
    last = known[-1]
    if first is not None and first > 0:
        return [f"{said} Sums of paths through {first} heads or more are nearly rank one on their own."]
    more = f"the sum of paths through {exactly(last[0])} has relative residual {numeral(last[1])}"
    return [f"{said} Long paths do not all collapse here: {more}."] if first is None else [said]


def _cancelling(data: Data) -> list[str]:
    shown = data["lengths"][: seen_lengths(data)]
    rows = [row for row in shown if row["energy"] is not None and row["paths"] > 1 and row["stream"]]
    found = [row for row in rows if row["energy"] > CANCEL * row["stream"] ** 2]
    if not found:
        return []
    row = max(found, key=lambda one: one["energy"])
    return [
        f"Paths through {exactly(row['length'])} cancel: their squares add up to {numeral(row['energy'])} (give or "
        f"take {numeral(row['energy_error'])}), the square of their sum is {numeral(row['stream'] ** 2)}."
    ]


def _exact(data: Data) -> str:
    return (
        f"The sum over all lengths differs from the model's own number by {numeral(data['difference'])}, and no "
        f"block's linear form differs from the block by more than {numeral(data['linear_difference'])} (relative, "
        f"{data['dtype']})."
    )


def _from_on(true: Sequence[bool]) -> int | None:
    """The first place from which on all are true."""
    first = len(true)
    while first > 0 and true[first - 1]:
        first -= 1
    return first if first < len(true) else None


def at_most(length: int) -> str:
    return "no head at all" if length == 0 else f"at most {exactly(length)}"


def exactly(length: int) -> str:
    return "no head" if length == 0 else "one head" if length == 1 else f"{length} heads"


def _signed(value: float) -> str:
    return f"+{numeral(value)}" if value > 0 else numeral(value)


def chain_words(chain: Mapping[str, Any]) -> str:
    """`' do' (token 14) → layer 4 head 1 → output`."""
    steps = [f"'{chain['token']}' (token {chain['position']})"]
    steps += [f"layer {layer} head {head}" for layer, head in chain["heads"]]
    return " → ".join([*steps, "output"])


def length_lines(data: Data) -> list[tuple[str, ...]]:
    """A table with its heading: lengths that matter, and all longer ones as one line."""
    classes = data["output"] == "classes"
    heading = [
        "length",
        "paths",
        "adds",
        "mean path",
        "from constants",
        "sum so far",
        "says so far",
        "p",
        "says without",
        "residual",
    ]
    shown = seen_lengths(data)
    rows: list[tuple[str, ...]] = [tuple(heading)]
    for row in data["lengths"][:shown]:
        up_to, without = row["up_to"], row["without"]
        rows.append(
            (
                str(row["length"]),
                count_words(row["paths"]),
                _signed(row["value"]),
                _signed(row["mean"]),
                _signed(row["constants"]) if row["constants"] else "0",
                numeral(up_to["value"]),
                _quoted(up_to["predicted"], classes),
                _optional(up_to["probability"]),
                _quoted(without["predicted"], classes),
                _optional(row["residual"]),
            )
        )
    rest = data["lengths"][shown:]
    if rest:
        last = rest[-1]
        size = _signed(sum(row["value"] for row in rest))
        paths = count_words(sum(row["paths"] for row in rest))
        label = f"{rest[0]['length']}–{last['length']}" if len(rest) > 1 else str(last["length"])
        says = _quoted(last["up_to"]["predicted"], classes)
        own = _optional(last["up_to"]["probability"])
        constants = sum(row["constants"] for row in rest)
        small = _signed(constants) if constants else "0"
        rows.append((label, paths, size, "", small, numeral(last["up_to"]["value"]), says, own, "", ""))
    return rows


def count_words(amount: int) -> str:
    return f"{amount:,}" if amount < 10**6 else numeral(float(amount))


def _quoted(word: str | None, plain: bool) -> str:
    return "–" if word is None else word if plain else f"'{word}'"


def _optional(value: float | None) -> str:
    return "–" if value is None else numeral(value)
