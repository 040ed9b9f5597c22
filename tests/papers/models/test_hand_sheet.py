"""The sheet: staircases look numbers up, and take off what was a little wrong with them."""

from __future__ import annotations

import torch

from attnscope.papers.models.hand_sheet import Sheet


def test_a_staircase_looks_up_and_cleans() -> None:
    nodes, values = torch.tensor([-1.0, 0.0, 0.5, 3.0]), torch.tensor([[2.0], [-1.0], [4.0], [0.0]])
    for off in (-0.2, 0.0, 0.2):
        sheet = Sheet({"x": 1, "y": 1}, 4, 1, 1, [1], 6, 5)
        steps = torch.tensor([1.0, 0.5, 0.5, 2.5])  # the smaller neighbouring step of each node
        sheet.embed("x", (nodes + off * steps)[:, None])
        sheet.staircase(0, {"x": 1.0}, nodes, {"y": values})
        sheet.model.output.weight.data[0, sheet.at["y"]] = 1.0
        with torch.no_grad():
            said = sheet.model(input_ids=torch.arange(4)[:, None])[:, 0, 0]
        torch.testing.assert_close(said, values[:, 0], atol=1e-5, rtol=0)


def test_nearest_number_is_the_answer() -> None:
    sheet = Sheet({"y": 1}, 5, 1, 1, [1], 1, 4)
    sheet.embed("y", torch.tensor([[0.4], [0.6], [1.9], [2.6], [9.0]]))
    with torch.no_grad():
        said = sheet.say("y", 4)(input_ids=torch.arange(5)[:, None]).argmax(-1)[:, 0]
    assert said.tolist() == [0, 1, 2, 3, 3]
