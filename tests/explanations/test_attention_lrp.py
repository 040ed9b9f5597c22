"""Conservation: relevance of tokens and constants adds up to the answer, and the model's numbers do not change."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.explanations.attention_lrp import Conserving
from attnscope.hf.intercepting.owners import first_output
from attnscope.hf.tapping.entrances import entering
from tests.explanations.runs import BY_NAME, batch_of, number, places_of

# With and without biases, gated and plain MLPs, activations as one function or as several, soft-capping, two stacks,
# parallel blocks, own softmax.
FAMILIES = ("BERT", "GPT-2", "GPT-NeoX", "Llama", "Gemma2", "ModernBERT", "T5", "BART", "MPNet", "Falcon")

SINGLE = ("Llama", "Gemma2", "ModernBERT", "T5")


class Counting(Conserving):
    """The same rules; records attention and softmax, because their expansions have constants."""

    def __init__(self) -> None:
        super().__init__()
        self.expanded: list[tuple[list[Tensor], Tensor]] = []

    def __torch_function__(self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        answer = super().__torch_function__(func, types, args, kwargs)
        if func is F.scaled_dot_product_attention or getattr(func, "__name__", "") == "softmax":
            given = [one for one in (*args, *(kwargs or {}).values()) if isinstance(one, Tensor) and one.requires_grad]
            self.expanded.append((given, answer))
        return answer


@pytest.mark.parametrize("name", FAMILIES)
def test_relevance_of_tokens_and_constants_adds_up_to_the_answer(name: str) -> None:
    model, batch = BY_NAME[name].model().double().requires_grad_(False), batch_of(name)
    _, places = places_of(name)
    with torch.no_grad():
        own = first_output(model(**batch))
    # All that is added and does not come from a token: biases, and vectors of positions and token types.
    tables = {place.path for place in places}  # a bias of logits is inside the expansion of softmax
    constants: list[Tensor] = [p for n, p in model.named_parameters() if n.endswith(".bias")]
    shared = {id(model.get_submodule(path).weight) for path in tables}
    for name_of, module in model.named_modules():
        if (
            isinstance(module, torch.nn.Embedding)
            and id(module.weight) not in shared
            and not (name == "T5" and "relative" in name_of)
        ):
            constants.append(module.weight)
    for one in constants:
        one.requires_grad_()
    leaves: list[Tensor] = []

    def give(stack: str, vectors: Tensor) -> Tensor:
        leaves.append(vectors.detach().requires_grad_())
        return leaves[-1].clone()

    rules = Counting()
    with torch.enable_grad(), entering(model, places, give):
        with rules:
            output = first_output(model(**batch))
        answer = number(output).sum()
        expanded = [one for given, gave in rules.expanded for one in (*given, gave)]
        wanted = [*leaves, *constants, *expanded]
        gradients = torch.autograd.grad(answer, wanted, allow_unused=True)
    assert torch.equal(output, own)  # the numbers are the model's own, bit for bit
    taken = iter(
        [0.0 if g is None else float((one.detach() * g).sum()) for one, g in zip(wanted, gradients, strict=True)]
    )
    tokens = sum(next(taken) for _ in leaves)
    added = sum(next(taken) for _ in constants)
    expansions = 0.0
    for given, _ in rules.expanded:
        inside = sum(next(taken) for _ in given)
        expansions += next(taken) - inside
    # Sums of some ten thousand terms below 10, in float64; some models compute norms or positions in float32 all the
    # same, and their constants are then off by a unit of that.
    assert tokens + added + expansions == pytest.approx(float(answer.detach()), abs=1e-6 if name in SINGLE else 1e-10)
    assert abs(tokens) > 1e-3


def test_rules_of_single_operations() -> None:
    x = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64, requires_grad=True)
    with Conserving():
        product = (x * w).sum()
        activated = F.gelu(x).sum()
        normed = (x * torch.rsqrt(x.square().mean())).sum()
        gated = (x * torch.sigmoid(w)).sum()
    for answer, of in ((product, (x, w)), (activated, (x,)), (normed, (x,)), (gated, (x,))):
        gradients = torch.autograd.grad(answer, of)
        assert sum(float((a.detach() * g).sum()) for a, g in zip(of, gradients, strict=True)) == pytest.approx(
            float(answer.detach())
        )
    with Conserving():
        halves = torch.autograd.grad((x * w).sum(), (x, w))
        (through_gate,) = torch.autograd.grad((x * torch.sigmoid(w)).sum(), w, allow_unused=True)
    assert halves[0].tolist() == (w / 2).tolist()
    assert halves[1].tolist() == (x / 2).tolist()
    assert through_gate is None
    with Conserving():
        (at_zero,) = torch.autograd.grad(F.gelu(x).sum(), x)
    assert float(at_zero[2]) == pytest.approx(0.5, abs=1e-6)  # the ratio gelu(z) / z at 0 is its derivative there
