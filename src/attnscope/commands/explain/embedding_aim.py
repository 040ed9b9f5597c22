"""Choose the number to explain for models without logits: the norm of an embedding, a similarity, or a linear head.

The embedding of a text is the mean of its states, as in sentence encoders. The embedding of a picture is the state of
[CLS], or the mean if there is no [CLS]. Models with two towers (CLIP) compute the similarity of picture and text.

A linear head adds classes to a backbone that has none. These forms are accepted:

    head.safetensors        weight [class, width], bias [class] (default 0), in its metadata labels as JSON
    {"weight": ..., "bias": ..., "labels": ["nominal", "defect"]}       nn.Linear(width, classes)       an array
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.explain.aiming import Aim, Question
from attnscope.commands.explain.record import Asked
from attnscope.core.errors import RefusalError
from attnscope.data.medium import medium
from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.owners import first_output
from attnscope.hf.intercepting.restoring import evaluating, without_cache, without_gradients
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading, asked
from attnscope.hf.loading.outputs import Entries

NORM = "norm"
Pooled = Callable[[Tensor], Float[Tensor, "batch width"]]


@dataclass(frozen=True)
class LinearHead:
    weight: Float[Tensor, "classes width"]
    bias: Float[Tensor, " classes"]
    labels: tuple[str, ...]

    def entries(self) -> Entries:
        return Entries("classes", len(self.weight), False, dict(enumerate(self.labels)), None)


def linear_head(source: Any) -> LinearHead:
    """Return a head from a file, an nn.Linear, a mapping or an array."""
    if isinstance(source, LinearHead):
        return source
    if isinstance(source, str | Path):
        return _checked(*_of_file(Path(source)))
    if isinstance(source, nn.Linear):
        return _checked(source.weight.detach(), None if source.bias is None else source.bias.detach(), ())
    if isinstance(source, Mapping):
        if "weight" not in source:
            raise RefusalError("The mapping of a head needs weight [class, width]; bias and labels are optional.")
        return _checked(source["weight"], source.get("bias"), tuple(map(str, source.get("labels", ()))))
    return _checked(source, None, ())


def _of_file(path: Path) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise RefusalError(f"There is no file '{path}': give a .safetensors file with weight and bias to `head=`.")
    try:
        with safe_open(str(path), framework="pt") as stored:
            named = {name: stored.get_tensor(name) for name in stored.keys() if name in ("weight", "bias")}  # noqa: SIM118
            labels = json.loads((stored.metadata() or {}).get("labels", "[]"))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise RefusalError(
            f"'{path}' cannot be read as a safetensors file ({type(error).__name__}): save weight and bias in one."
        ) from None
    if "weight" not in named:
        raise RefusalError(f"'{path}' has no weight: save weight [class, width] and bias [class] in it.")
    return named["weight"], named.get("bias"), tuple(map(str, labels)) if isinstance(labels, list) else ()


def _checked(weight: Any, bias: Any, labels: tuple[str, ...]) -> LinearHead:
    try:
        matrix = torch.as_tensor(weight).detach().double()
        shift = torch.zeros(len(matrix)) if bias is None else torch.as_tensor(bias).detach().flatten()
    except (TypeError, ValueError, RuntimeError):
        raise RefusalError(
            f"The weight of a head must be an array [class, width], not a {type(weight).__name__}."
        ) from None
    matrix = matrix[None] if matrix.ndim == 1 else matrix
    if matrix.ndim != 2 or len(shift) != len(matrix) or not bool(matrix.isfinite().all() & shift.isfinite().all()):
        raise RefusalError(
            "The classification head needs a finite weight [class, width] and a bias for every class: check their "
            "shapes and values."
        )
    if labels and len(labels) != len(matrix):
        raise RefusalError(f"The head has {len(matrix)} classes and {len(labels)} labels: give a label for each.")
    return LinearHead(matrix, shift.double(), labels or tuple(f"class {n}" for n in range(len(matrix))))


def two_towers(read: Reading, output: Tensor) -> bool:
    """Return whether the model read a picture and a text and returned their similarity."""
    return bool(read.scenes) and read.ids is not None and output.shape == (1, 1) and "input_ids" in read.batch


def of_two_towers(loaded: Loaded, output: Tensor, question: Question) -> Aim:
    if any(part is not None for part in (question.target, question.against, question.position, question.head)):
        raise RefusalError(
            f"{loaded.class_name} returns the similarity of a picture and a text: omit `target=`, `against=`, "
            "`position=` and `head=`."
        )

    # scale * cosine + bias: the scale is stored as its logarithm (arXiv:2103.00020), the bias is optional
    # (arXiv:2303.15343). A trained scale is about 100, at which a sigmoid is always 1, so the cosine is used instead.
    scale, bias = (getattr(loaded.model, name, None) for name in ("logit_scale", "logit_bias"))
    factor = float(scale.detach().exp()) if isinstance(scale, Tensor) else 1.0
    shift = float(bias.detach()) if isinstance(bias, Tensor) else 0.0

    def number(output: Tensor) -> Tensor:
        return output.diagonal()  # each picture with its own text

    def cosine(output: Tensor) -> Tensor:
        return ((number(output) - shift) / factor).clamp_min(0)

    return Aim(number, torch.ones_like(output), Asked("match", where="as the model scales it"), None, cosine)


def of_states(loaded: Loaded, read: Reading, output: Tensor, question: Question) -> Aim:
    """Aim at a number that is computed from the embedding of a sentence encoder or of a vision backbone."""
    if question.position is not None:
        raise RefusalError(f"{loaded.class_name} has no logits, so its mean state is explained: omit `position=`.")
    pooled, spread, what = _pooling(read, output)
    if question.head is not None:
        return _of_head(linear_head(question.head), loaded, output, question, (pooled, spread, what))
    target, against = asked("target", question.target), question.against
    own = pooled(output)[0]
    if target is not None and against is not None:
        raise RefusalError(
            f"{loaded.class_name} has no logits: explain either one entry of its embedding (`target=`) or the "
            "similarity of two inputs (`against=`, or a second input)."
        )
    if isinstance(target, int) or (target is not None and target.isdecimal()):
        return _of_entry(int(target), pooled, spread, what, own)
    if target not in (None, NORM):
        raise RefusalError(
            f"{loaded.class_name} has no logits: omit `target=` to explain the norm of its {what}, give the number of "
            "an entry of it, give another input as `against=` to explain their similarity, or give a linear `head=`."
        )
    if against is None:
        states = "one state for the whole input" if output.ndim == 2 else "states"
        note = f"{loaded.class_name} gives {states} and no logits: the norm of the {what} is explained."
        unit = own / own.norm().clamp_min(torch.finfo(own.dtype).tiny)

        def size(states: Tensor) -> Tensor:
            lengths: Tensor = torch.linalg.vector_norm(pooled(states), dim=-1)
            return lengths

        return Aim(size, spread(unit), Asked("norm", of=what), None, size, (note,))
    if medium(against) is None and not isinstance(against, str):
        raise RefusalError(
            f"{loaded.class_name} has no logits, so `against=` must be another text or picture, not a "
            f"{type(against).__name__}."
        )
    other, name = _embedding(loaded, against, question)
    note = (
        f"{loaded.class_name} gives states and no logits: the similarity of the two inputs is explained, the cosine of "
        f"the {what} of each."
    )
    unit = other / (other.norm() * own.norm()).clamp_min(torch.finfo(own.dtype).tiny)

    def likeness(output: Tensor) -> Tensor:
        return F.cosine_similarity(pooled(output), other[None], dim=-1)

    goal = Asked("similarity", other=name)
    return Aim(likeness, spread(unit), goal, None, lambda output: likeness(output).clamp_min(0), (note,))


def _of_entry(entry: int, pooled: Pooled, spread: Callable[[Tensor], Tensor], what: str, own: Tensor) -> Aim:
    """Aim at one entry of the embedding: a channel, or one of the scores that some models return."""
    if not 0 <= entry < len(own):
        raise RefusalError(f"The {what} has entries 0 to {len(own) - 1}, not {entry}: choose one of them.")
    unit = torch.zeros_like(own)
    unit[entry] = 1

    def number(output: Tensor) -> Tensor:
        return pooled(output)[:, entry]

    goal = Asked("entry", str(entry), of=what)
    return Aim(number, spread(unit), goal, None, lambda output: number(output).clamp_min(0))


def _of_head(
    head: LinearHead, loaded: Loaded, output: Tensor, question: Question, pooling: tuple[Pooled, Any, str]
) -> Aim:
    """Aim at a class that a linear head computes from the embedding."""
    pooled, spread, what = pooling
    weight, bias = (tensor.to(output) for tensor in (head.weight, head.bias))
    width = pooled(output).shape[1]
    if weight.shape[1] != width:
        raise RefusalError(
            f"The head expects {weight.shape[1]} numbers, and the {what} of {loaded.class_name} has {width}: give a "
            "head that was trained on this model."
        )
    target, against = asked("target", question.target), asked("against", question.against)
    found = head.entries()
    row = (pooled(output) @ weight.mT + bias)[0]
    entry = int(row.argmax()) if target is None else found.number(target)
    weights = {entry: 1.0}
    goal = Asked("logit", found.word(entry), where=f"of the head on the {what}")
    if against is not None:
        other = found.number(against)
        if other == entry:
            raise RefusalError(f"The target and `against=` are both '{found.word(entry)}': choose two different ones.")
        weights[other] = -1.0
        goal = replace(goal, kind="difference", other=found.word(other))
    if len(weight) == 1 and target is None and bool(row[0] < 0):
        weights = {0: -1.0}  # a single logit below 0 means no: explain that
        goal = Asked("logit", f"not {found.word(0)}", where=goal.where)
    mixed = torch.stack([amount * weight[index] for index, amount in weights.items()]).sum(0)
    constant = sum(amount * bias[index] for index, amount in weights.items())

    def number(output: Tensor) -> Tensor:
        return pooled(output) @ mixed + constant

    def chance(output: Tensor) -> Tensor:
        if len(weight) == 1:
            return number(output).sigmoid()
        return (pooled(output) @ weight.mT + bias).softmax(-1)[:, entry]

    return Aim(number, spread(mixed), goal, None, chance)


def _pooling(read: Reading, output: Tensor) -> tuple[Pooled, Callable[[Tensor], Tensor], str]:
    """Return how to compute the embedding from the output, how to spread its gradient over the output, and its name."""
    if output.ndim == 2:
        return (lambda output: output), (lambda unit: unit.expand(output.shape).clone()), "embedding"
    if output.ndim != 3:
        raise RefusalError("The output is neither states nor an embedding: choose a model with a head.")
    grid = next((scene.grid for scene in read.scenes if scene.kind == "image"), None)
    if grid is not None and read.ids is None and output.shape[1] > grid[0] * grid[1]:

        def at_first(unit: Tensor) -> Tensor:
            made = torch.zeros_like(output)
            made[:, 0] = unit
            return made

        return (lambda output: output[:, 0]), at_first, "state of [CLS]"
    tokens = output.shape[1]
    return (lambda output: output.mean(1)), (lambda unit: (unit / tokens).expand(output.shape).clone()), "mean state"


def _embedding(loaded: Loaded, other: Any, question: Question) -> tuple[Float[Tensor, " width"], str]:
    read = question.read(loaded, other)
    with evaluating(loaded.model), without_cache(loaded.model), without_gradients():
        output = first_output(run(loaded.model, read.batch))
    name = read.scenes[0].name if read.scenes else str(other)
    return _pooling(read, output)[0](output)[0], name
