"""How a block writes into the residual stream, found by arithmetic on what its modules took and gave.

Backwards from what leaves the block: a state is either a norm of a sum (post-norm), or an earlier state
plus the output of some module (a write), or the entering stream plus two writes made side by side
(parallel). The walk ends at the stream that entered; if it does not, the block's writes are not
separable and nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.anatomy.recording import Location, StreamRecord

_UNEXPLAINED = 0.5  # a change more than half of which is left over is not explained by a write
_LONGEST = 8  # writes in one block: two, three with cross-attention, four in a macaron


@dataclass(frozen=True)
class Writes:
    """Norm placement and where to read the stream between attention and MLP."""

    norm: str  # "pre", "post", "sandwich", "parallel", "none" or "unknown"
    count: int = 0  # writes found; 0 where not separable
    middle: Location | None = None  # the stream after the last attention write
    adds: float | None = None  # in parallel blocks `middle` is the write itself: stream + adds * write
    identities: tuple[Identity, ...] = ()  # one per write (parallel: one for both)
    norms: tuple[str, ...] = ()  # modules that norm a state of the stream, or give one

    @property
    def separable(self) -> bool:
        return self.count > 0


@dataclass(frozen=True)
class Identity:
    """result = before + multiplier * sum of writes, as places where the three can be read during any run."""

    result: Location | None  # None: the stream that leaves the block
    before: Location | None  # None: the stream that enters it
    writes: tuple[Location, ...]
    multiplier: float


@dataclass(frozen=True)
class _Step:
    result: Location | None  # None: the stream that left
    before: StreamRecord | None  # None: the stream that entered
    write: StreamRecord
    multiplier: float
    normed: bool


State = Float[Tensor, "batch token width"]


def find_writes(entered: State, left: State, records: list[StreamRecord], attended: list[int], eps: float) -> Writes:
    """Walk back from `left` to `entered`. `attended` says when, in record order, attention happened."""
    gave = [r for r in records if r.place.side == "output"]
    distinct = _distinct(records)
    norms = [r for r in gave if r.alone and _is_norm(r, records)]
    steps: list[_Step] = []
    state = left
    while len(steps) < _LONGEST:
        source, result, normed = state, steps[-1].before.place if steps and steps[-1].before else None, False
        norm = next((n for n in norms if torch.equal(n.tensor, state)), None)
        if norm is not None:
            taken = _taken(norm, records)
            source, result, normed = taken.tensor, taken.place, True
        step = _last_write(source, entered, distinct, _distinct(gave), eps=eps, normed=normed, result=result)
        if step is None:
            both = None if steps else _two_writes(state, entered, _distinct(gave), eps)
            if both is None:
                return Writes("unknown")
            return _parallel(both, attended, _of_states(norms, records, [entered, left]))
        steps.append(step)
        if step.before is None:
            return _sequential(steps[::-1], norms, records, entered=entered, left=left, attended=attended)
        state = step.before.tensor
    return Writes("unknown")


def _sequential(
    steps: list[_Step],
    norms: list[StreamRecord],
    records: list[StreamRecord],
    *,
    entered: State,
    left: State,
    attended: list[int],
) -> Writes:
    # The write of an attention call is the first one that finishes after it.
    last = max((_first_after(when, steps) for when in attended), default=-1)
    middle = None
    if 0 <= last < len(steps) - 1:
        follows = steps[last + 1].before
        middle = None if follows is None else follows.place
    if any(step.normed for step in steps):
        norm = "post"
    elif all(any(torch.equal(n.tensor, step.write.tensor) for n in norms) for step in steps):
        norm = "sandwich"
    else:
        states = [entered, *(step.before.tensor for step in steps if step.before is not None)]
        reads = [_taken(n, records).tensor for n in norms]
        norm = "pre" if any(torch.equal(read, state) for read in reads for state in states) else "none"
    identities = tuple(
        Identity(s.result, None if s.before is None else s.before.place, (s.write.place,), s.multiplier) for s in steps
    )
    passed = [entered, *(step.before.tensor for step in steps if step.before is not None), left]
    return Writes(norm, len(steps), middle, None, identities, _of_states(norms, records, passed))


def _of_states(norms: list[StreamRecord], records: list[StreamRecord], states: list[State]) -> tuple[str, ...]:
    """Paths of the norms that read or give a state; those of writes, or of queries and keys, are others."""
    mine = (
        norm.place.path
        for norm in norms
        if any(torch.equal(seen, state) for seen in (_taken(norm, records).tensor, norm.tensor) for state in states)
    )
    return tuple(dict.fromkeys(mine))


def _first_after(when: int, steps: list[_Step]) -> int:
    later = [(step.write.order, index) for index, step in enumerate(steps) if step.write.order >= when]
    return min(later)[1] if later else -1


def _parallel(both: tuple[StreamRecord, StreamRecord, float], attended: list[int], norms: tuple[str, ...]) -> Writes:
    first, second, multiplier = both
    early, late = sorted((first, second), key=lambda record: record.order)
    attention = early if not attended or early.order >= max(attended) else late
    identity = Identity(None, None, (first.place, second.place), multiplier)
    return Writes("parallel", 2, attention.place, multiplier, (identity,), norms)


def _last_write(
    state: State,
    entered: State,
    records: list[StreamRecord],
    gave: list[StreamRecord],
    *,
    eps: float,
    normed: bool,
    result: Location | None,
) -> _Step | None:
    """state = before + multiplier * write, `before` being the entering stream or any tensor of the block."""
    best, lowest = None, _UNEXPLAINED
    for before in (None, *records):
        base = entered if before is None else before.tensor
        later = [g for g in gave if before is None or g.order > before.order]
        if not later or torch.equal(base, state):
            continue
        slopes, rest = _explain(state, base, torch.stack([g.tensor for g in later]), eps)
        for index in torch.nonzero(rest < lowest).flatten().tolist():
            if rest[index] < lowest:
                lowest = float(rest[index])
                best = _Step(result, before, later[index], float(slopes[index]), normed)
    return best


def _two_writes(
    state: State, entered: State, gave: list[StreamRecord], eps: float
) -> tuple[StreamRecord, StreamRecord, float] | None:
    """state = entered + multiplier * (one write + another)."""
    best, lowest = None, _UNEXPLAINED
    for index, one in enumerate(gave[:-1]):
        others = gave[index + 1 :]
        sums = one.tensor + torch.stack([other.tensor for other in others])
        slopes, rest = _explain(state, entered, sums, eps)
        least = int(rest.argmin())
        if rest[least] < lowest:
            lowest = float(rest[least])
            best = (one, others[least], float(slopes[least]))
    return best


def _explain(
    state: State, base: State, writes: Float[Tensor, "write batch token width"], eps: float
) -> tuple[Float[Tensor, " write"], Float[Tensor, " write"]]:
    """How well state - base is a multiple of each write: the multiple, and how much of the change is left.

    Every entry is measured in units of the rounding error it can have, eps * (|state| + |base| + |write|). So
    one enormous activation does not drown all others, and low precision asks for no looser rule: what is left
    over must be a few roundings at most, and small beside the change itself.
    """
    unit = eps * (state.abs() + base.abs() + writes.abs()) + 1e-30
    change, scaled = ((state - base) / unit).flatten(1), (writes / unit).flatten(1)
    slopes = (scaled * change).sum(1) / scaled.square().sum(1).clamp_min(1e-300)
    slopes = torch.where((slopes - 1).abs() < 1e-2, 1.0, slopes)
    left_over = change - slopes[:, None] * scaled
    rest = left_over.norm(dim=1) / change.norm(dim=1).clamp_min(1e-300)
    wrong = (left_over.abs().amax(1) > 4) | (slopes.abs() < 1e-2)
    return slopes, rest.masked_fill(wrong, torch.inf)


def _distinct(records: list[StreamRecord]) -> list[StreamRecord]:
    """The first record of every tensor: dropout and containers pass on what others made."""
    kept: list[StreamRecord] = []
    for record in records:
        if not any(torch.equal(record.tensor, other.tensor) for other in kept):
            kept.append(record)
    return kept


def _taken(gave: StreamRecord, records: list[StreamRecord]) -> StreamRecord:
    return next(
        r
        for r in records
        if r.place.side == "input" and (r.place.path, r.place.nth) == (gave.place.path, gave.place.nth)
    )


def _is_norm(gave: StreamRecord, records: list[StreamRecord]) -> bool:
    """A norm gives the same for a vector and for ten times that vector, and is not the identity."""
    mine = [
        r
        for r in records
        if r.place.side == "input" and (r.place.path, r.place.nth) == (gave.place.path, gave.place.nth)
    ]
    inside = [child for child in gave.module.children() if not getattr(child, "stays_a_norm", False)]
    if len(mine) != 1 or not mine[0].alone or inside:
        return False
    taken = mine[0].tensor
    return not torch.equal(taken, gave.tensor) and _scale_free(gave.module, taken)


def _scale_free(module: nn.Module, taken: State) -> bool:
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    one = (taken / taken.std().clamp_min(1e-30) * 100).to(dtype)
    try:
        small, large = module.forward(one), module.forward(one * 10)
    except (RuntimeError, TypeError, ValueError):
        return False  # it takes something else as well, or another shape: no norm
    if not isinstance(small, Tensor) or not isinstance(large, Tensor) or small.shape != large.shape:
        return False
    return bool((small - large).double().norm() <= 1e-2 * small.double().norm())
