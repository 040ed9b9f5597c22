import pytest
import torch

from attnscope.measures.head_overlap import head_overlap


def _ask(fields):
    return head_overlap(head_overlap=fields["head_overlap"])["value"]


def test_by_hand(statistics, identity, uniform, first_column):
    answer = _ask(statistics(torch.cat([identity, first_column, identity, uniform], dim=1)))
    # identity and uniform: 1/(sqrt(8) * 1); one column and uniform: the same; identity and one column: 1/8
    expected = [1.0, 8**-0.5, 1.0, 8**-0.5]
    assert answer.value.flatten().tolist() == pytest.approx(expected)
    assert answer.where["other"].flatten().tolist()[:3] == [2, 3, 0]


def test_single_head_has_no_overlap(statistics, identity):
    assert _ask(statistics(identity)).value.item() == 0.0


def test_bound_and_invariance(statistics, random_pattern):
    pattern = random_pattern(0, 2, 4, 9, 9)
    answer = _ask(statistics(pattern))
    assert ((answer.value > 0) & (answer.value <= 1)).all()
    assert (answer.where["other"] != torch.arange(4)).all()
    torch.testing.assert_close(_ask(statistics(pattern.flip(-1))).value, answer.value)
    torch.testing.assert_close(_ask(statistics(0.2 * pattern)).value, answer.value)
