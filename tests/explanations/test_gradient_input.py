"""Gradient times input is the answer itself where the answer is linear in the embedding."""

import torch

from attnscope.explanations.gradient_input import gradient_input
from attnscope.hf.tapping.capture import asked_with
from tests.explanations.runs import batch_of, captured, model_of, number, places_of


def test_linear_answer_by_hand() -> None:
    vectors, weights = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[0.5, 1.0], [2.0, 4.0]])
    found = gradient_input(embedding={"model": vectors}, embedding_gradient={"model": weights})
    assert found["model"].tolist() == [2.5, 2.0]


def test_equals_the_derivative_along_each_token() -> None:
    """The answer for an embedding that is longer by a factor 1 + h in one token, to second order in h."""
    run, _ = captured("GPT-2", torch.float64)
    model, batch = model_of("GPT-2", torch.float64), batch_of("GPT-2")
    _, places = places_of("GPT-2")
    found = gradient_input(embedding=run.embedding, embedding_gradient=run.embedding_gradient)["model"]
    own, h = run.embedding["model"], 1e-5
    longer, shorter = (own * (1 + side * h * torch.eye(len(own), dtype=own.dtype))[:, :, None] for side in (1, -1))
    with torch.no_grad():
        up, down = (asked_with(model, batch, places, number, {"model": one}) for one in (longer, shorter))
    # Central differences: errors of h^2 = 1e-10 and of rounding, 1e-16 / h = 1e-11, times numbers up to some tens.
    torch.testing.assert_close((up - down) / (2 * h), found, rtol=0, atol=1e-8)
