"""Figures 5 to 7 of paper 000, step by step, and the law k(i) in K(i) under random steps."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tamis.errors import InvariantError
from tamis.index.bst import EVERYTHING, Range, SearchTree


def figure_5() -> SearchTree:
    """The left-hand tree: nodes 5, 2 and 7, and two warehouses with two items in stock."""
    tree = SearchTree()
    for name, stock in (("C", 5), ("A", 2), ("B", 2), ("D", 7)):
        tree.insert(name, stock)
    return tree


def test_figure_5_escalates() -> None:
    tree = figure_5()
    assert tree.known("A") == (2, 2)
    assert str(tree) == "5 exact {C}\n< 2 exact {A B}\n> 7 exact {D}"
    tree.update("A", 3)
    assert str(tree) == "5 left {A} exact {C}\n< 2 exact {B}\n> 7 exact {D}"
    assert tree.known("A") == Range(-float("inf"), 5)
    assert tree.probe(4) == {"A"}  # has only three: a false positive
    assert tree.probe(2) == {"A", "B"}
    assert tree.probe(5) == {"C"} and tree.probe(6) == set() and tree.probe(7) == {"D"}
    tree.check()


def test_figure_6_is_cheap() -> None:
    tree = figure_5()
    tree.update("A", 3)
    drawn = str(tree)
    assert tree.covers("A", 1) and not tree.covers("A", 5)
    tree.update("A", 1)
    assert str(tree) == drawn
    tree.check()


def test_figure_7_deescalates() -> None:
    tree = figure_5()
    tree.update("A", 3)
    tree.update("A", 1)
    tree.deescalate("A")
    assert str(tree) == "5 exact {C}\n< 2 left {A} exact {B}\n> 7 exact {D}"
    assert tree.probe(1) == {"A"}
    assert [tree.probe(stock) for stock in (2, 3, 4, 5)] == [{"B"}, set(), set(), {"C"}]
    tree.check()
    tree.deescalate("A")  # below a leaf: a node of its own
    assert str(tree) == "5 exact {C}\n< 2 exact {B}\n<< 1 exact {A}\n> 7 exact {D}"
    drawn = str(tree)
    tree.deescalate("A")
    assert str(tree) == drawn
    tree.check()


def test_a_jump_across_the_root_leaves_the_tree() -> None:
    tree = figure_5()
    tree.update("A", 9)
    assert tree.known("A") == EVERYTHING and all("A" in tree.probe(stock) for stock in range(12))
    tree.deescalate("A")
    assert tree.known("A") == Range(5, float("inf"))
    tree.deescalate("A")
    assert tree.known("A") == Range(7, float("inf"))
    tree.check()


def test_check_finds_a_key_outside_of_what_is_known() -> None:
    tree = figure_5()
    tree._key["A"] = 3
    with pytest.raises(InvariantError, match=r"k\(i\) is not in K\(i\) for 'A'"):
        tree.check()


class SearchTreeMachine(RuleBasedStateMachine):
    """Random steps; K(i) grows when escalated, shrinks when deescalated, and always has k(i)."""

    names = st.sampled_from("ABCDEFGH")
    keys = st.integers(0, 12)

    def __init__(self) -> None:
        super().__init__()
        self.tree = SearchTree()
        self.key: dict[str, int] = {}

    @rule(name=names, key=keys)
    def insert(self, name: str, key: int) -> None:
        if name in self.key:
            with pytest.raises(KeyError):
                self.tree.insert(name, key)
        else:
            self.tree.insert(name, key)
            self.key[name] = key

    @precondition(lambda self: self.key)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.key)))
        self.tree.remove(name)
        del self.key[name]

    @precondition(lambda self: self.key)
    @rule(data=st.data(), key=keys)
    def update(self, data: st.DataObject, key: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.key)))
        before, covered, drawn = self.tree.known(name), self.tree.covers(name, key), str(self.tree)
        self.tree.update(name, key)
        after = self.tree.known(name)
        assert after.low <= before.low and before.high <= after.high
        assert not covered or str(self.tree) == drawn
        self.key[name] = key

    @precondition(lambda self: self.key)
    @rule(data=st.data())
    def deescalate(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.key)))
        before = self.tree.known(name)
        self.tree.deescalate(name)
        after = self.tree.known(name)
        assert before.low <= after.low and after.high <= before.high

    @invariant()
    def answers_lack_nothing(self) -> None:
        self.tree.check()
        assert len(self.tree) == len(self.key)
        for key in range(13):
            found = self.tree.probe(key)
            assert {name for name in self.key if self.key[name] == key} <= found
            assert found == {name for name in self.key if self.tree.covers(name, key)}


def test_k_of_i_is_always_in_what_is_known() -> None:
    steps = settings(max_examples=settings().max_examples, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(SearchTreeMachine, settings=steps)
