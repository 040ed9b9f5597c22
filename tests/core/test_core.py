"""Cards, measures, the registry, and the stamp of versions and time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version

import pytest

import attnscope
from attnscope.core.card import Alarm, Card
from attnscope.core.decoding import decode, encode
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.finding import Finding
from attnscope.core.measure import Located, measure
from attnscope.core.registry import choose, measures
from attnscope.core.stamp import Stamp


def _declare(**more: object):
    return measure(
        title="T",
        summary="S.",
        unit="share",
        citation="arXiv:2103.03404",
        scope="attention",
        high=1.0,
        **more,  # type: ignore[arg-type]
    )


def test_a_measure_reads_what_its_parameters_name() -> None:
    @_declare()
    def twice(row_entropy: float, query_mask: float) -> float:
        return 2 * row_entropy + query_mask

    assert twice.reads == ("row_entropy", "query_mask")
    assert twice.card.name == "twice"
    assert twice.card.sites == ("self", "cross")
    assert twice(row_entropy=3.0, query_mask=1.0) == {"value": Located(7.0)}


def test_parts_must_match_the_card() -> None:
    @_declare(parts=("first", "second"))
    def pair(x: float) -> dict[str, float]:
        return {"first": x}

    with pytest.raises(TypeError, match="returned parts"):
        pair(x=1.0)


def test_a_card_survives_json() -> None:
    @_declare(parts=("a", "b"), alarm=Alarm(">", 0.5, "too much"))
    def thing(x: float) -> float:
        return x

    assert decode(Card, json.loads(json.dumps(encode(thing.card)))) == thing.card


@pytest.mark.parametrize(("relation", "value", "rings"), [(">", 0.6, True), (">", 0.5, False), ("<", 0.4, True)])
def test_alarm_rings_only_on_its_side_of_the_threshold(relation: str, value: float, rings: bool) -> None:
    assert Alarm(relation, 0.5, "m").rings(value) is rings  # type: ignore[arg-type]


def test_sets_and_names_are_chosen_in_catalog_order() -> None:
    known = measures()
    default = choose(["default"])
    assert {m.card.group for m in default} == {"default"}
    training = [m for m in known.values() if m.card.group == "training"]  # measured in training steps, not in a scan
    assert {m.card.scope for m in training} == {"training"}
    assert set(choose(["all"])) == {*choose(["default"]), *choose(["deep"])} == set(known.values()) - set(training)
    assert [m.card.name for m in choose(["spike", "entropy"])] == ["entropy", "spike"]


def test_an_unknown_measure_suggests_the_nearest() -> None:
    with pytest.raises(RefusalError, match="Did you mean 'entropy'"):
        choose(["entropi"])


def test_choosing_nothing_is_refused() -> None:
    with pytest.raises(RefusalError, match="No measure"):
        choose([])


def test_nearest_lists_everything_when_nothing_is_close() -> None:
    assert nearest("zzz", ["b", "a"]) == " Known: a, b."


def test_a_refusal_is_one_line() -> None:
    assert str(RefusalError("a\n   b")) == "a b"


def test_severity_is_ordered() -> None:
    finding = Finding("k", "to_know", "model", (1,), (), "s", 1.0, 0.5, "t", "c", "a")
    assert finding.at_least("note")
    assert finding.at_least("to_know")
    assert not finding.at_least("wrong")


def test_stamp_names_versions_and_time() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    data = Stamp.now().to_json()
    assert list(data) == ["versions", "attnscope", "created"]
    assert data["versions"] == {name: version(name) for name in ("torch", "transformers", "numpy")}
    assert data["attnscope"] == attnscope.__version__
    assert before <= datetime.fromisoformat(str(data["created"])) <= datetime.now(UTC)
