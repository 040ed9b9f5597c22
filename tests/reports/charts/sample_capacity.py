"""A capacity record with known numbers: widths of 2 n and 5 n along n and k, and bounds below them."""

from __future__ import annotations

from attnscope.commands.capacity.record import Capacity, Floor, Need
from attnscope.heads.facts import Bound, Bounds


def need(method: str, n: int, k: int, d: int | None) -> Need:
    return Need(method, n, k, d, (d,), (0,), None if d is None else 9.5, 1.5)


def sample_capacity(*, floors: bool = True, against_k: bool = True) -> Capacity:
    places = (2, 4, 8)
    return Capacity(
        n=8,
        k=3,
        dtype="float32",
        ratio_error=0.1,
        leak=0.01,
        seeds=(0,),
        bounds=Bounds(
            (
                Bound("one", 1, True, "A head has at least one coordinate.", "by definition"),
                Bound("universal", 6, True, "Keys that serve every support need width 6.", "J. Radon"),
                Bound("typical", 2, False, "Most patterns need width 2.", "H. E. Warren"),
            ),
            17.25,
        ),
        theorem_width=38_809_393,
        needs=(
            need("joint", 8, 3, 4),
            need("frame", 8, 3, None),
            Need("margin", 8, 3, None, (), (), None, 0.0, "not measured (would take about 40 s)"),
        ),
        against_n=tuple(need(name, at, 3, d * at) for name, d in (("joint", 2), ("frame", 5)) for at in places),
        against_k=tuple(need(name, 64, at, d * at) for name, d in (("joint", 2), ("frame", 5)) for at in places)
        if against_k
        else (),
        seconds=1.234,
        floors=tuple(Floor(n, k, n, 1) for n, k in [(at, 3) for at in places] + [(64, at) for at in places])
        if floors
        else (),
    )
