"""The workload is the paper's: ranges, quantised values, moves, the share of indexed attributes, bursts."""

from __future__ import annotations

import numpy as np
import pytest

from tamis import Filter, Matches, ReferenceFilter
from tamis.lab import agile_workload as w
from tamis.lab.agile_orders import FULL, WAREHOUSES, Orders


def test_values_are_uniform_and_have_three_relevant_digits() -> None:
    world = w.World(4_000, 1, digits=3)
    log = world.log(1_000, 5)
    for values in (world.state, world.fixed, log.points, log.moves[2]):
        flat = values.reshape(-1)
        assert flat.min() >= 0 and flat.max() <= w.DOMAIN
        assert flat.tolist() == [float(f"{value:.3g}") for value in flat.tolist()]
        assert abs(flat.mean() / w.DOMAIN - 0.5) < 0.03
        assert abs(np.quantile(flat, 0.25) / w.DOMAIN - 0.25) < 0.04


def test_brute_force_is_all_bounds_of_all_profiles() -> None:
    world = w.World(4_000, 1, digits=3)
    found = 0
    for _ in range(50):
        point = world.log(1, 200).points[-1]
        middles = np.concatenate([world.state, world.fixed])
        inside = ((middles - w.HALF <= point) & (point <= middles + w.HALF)).all(axis=1)
        assert world.last().tolist() == np.flatnonzero(inside).tolist()
        found += int(inside.sum())
    assert found > 0


def test_quantising_is_rounding_to_relevant_digits() -> None:
    values = np.array([0.0, 0.001236, 0.9996, 1.234, 99.96, 123.4, 9994.9, 9995.1, 10_000.0])
    w.quantise(values, 3)
    assert values.tolist() == [0.0, 0.00124, 1.0, 1.23, 100.0, 123.0, 9990.0, 10_000.0, 10_000.0]
    same = np.array([1.23456])
    w.quantise(same, 0)
    assert same.tolist() == [1.23456]


def test_nine_profiles_in_ten_follow_a_context_and_the_first_two_attributes_select() -> None:
    world = w.World(20_000, 2)
    assert (world.moving, len(world.fixed)) == (18_000, 2_000)
    middles, point = world.columns(), np.full(8, w.DOMAIN / 2)
    inside = np.abs(middles - point[:, None]) <= w.HALF[:, None]
    shares = inside.mean(axis=1)
    assert abs(shares[0] - 0.03) < 0.005 and abs(shares[1] - 0.083) < 0.01 and (shares[2:] > 0.99).all()
    assert abs(inside[:2].all(axis=0).mean() - 12e6 / 10_000 / w.PROFILES) < 0.001  # Table 5, EAGER


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_so_many_updates_hit_indexed_attributes(share: float) -> None:
    _, attribute, _ = w.World(1_000, 3, share=share).updates(40_000)
    assert abs((attribute < w.INDEXED).mean() - share) < 0.01
    used = np.bincount(attribute, minlength=8) / 40_000
    assert np.allclose(used[:2], share / 2, atol=0.01) and np.allclose(used[2:], (1 - share) / 6, atol=0.01)


@pytest.mark.parametrize("step", [1.0, 150.0, 2_500.0])
def test_updates_move_values_by_at_most_the_step(step: float) -> None:
    world = w.World(500, 4, step=step)
    before = world.state
    context, attribute, value = world.updates(5_000)
    moves = []
    for c, a, v in zip(context.tolist(), attribute.tolist(), value.tolist(), strict=True):
        moves.append(abs(v - before[c, a]))
        before[c, a] = v
    assert max(moves) <= step * (1 + 1e-9) and abs(np.mean(moves) / step - 0.5) < 0.05
    assert np.array_equal(before, world.state)


def test_small_steps_of_quantised_values_still_lead_somewhere() -> None:
    world = w.World(100, 5, step=1.0, digits=3)
    before = world.state
    world.updates(400_000)
    assert (np.abs(world.state - before) >= 10).mean() > 0.5


def test_updates_come_before_their_message_and_fractions_add_up() -> None:
    world = w.World(200, 6)
    counts = []
    for _ in range(4):
        kinds = [event[0] for event in world.log(5, 0.3).events.events()]
        counts.append(kinds.count("update"))
        assert kinds[-1] == "message" and kinds.count("message") == 5
    assert sum(counts) == 6
    kinds = [event[0] for event in world.log(3, 2).events.events()]
    assert kinds == ["update", "update", "message"] * 3


def test_a_burst_is_a_change_of_rate_on_one_walk() -> None:
    world = w.World(200, 7)
    sizes = [len(world.log(10, w.updates_per_message(up, 200)).moves[0]) for up in (1_000, 100_000, 1_000)]
    assert sizes == [200, 20_000, 200]


def test_the_same_seed_makes_the_same_world() -> None:
    one, two, other = w.World(300, 8), w.World(300, 8), w.World(300, 9)
    assert np.array_equal(one.log(20, 30).points, two.log(20, 30).points)
    assert np.array_equal(one.state, two.state) and not np.array_equal(one.state, other.state)


def pairs(matches: Matches) -> list[tuple[int, int]]:
    return sorted((message, int(id)) for message, id in matches)  # type: ignore[misc]


def test_matches_equal_brute_force_and_the_reference() -> None:
    world = w.World(400, 10, digits=3)
    filter, reference = Filter(), ReferenceFilter()
    world.subscribe(filter)
    world.subscribe(reference)  # type: ignore[arg-type]
    total = 0
    for rate in (0.5, 200, 3):
        log = world.log(40, rate)
        found = pairs(filter.process(log.events))
        assert found == pairs(reference.process(log.events))
        assert [id for message, id in found if message == 39] == world.last().tolist()
        total += len(found)
    assert total > 20


# -- orders ----------------------------------------------------------------------------------------------------


def test_orders_take_stock_as_the_reference_says() -> None:
    world = Orders(300, 1)
    filter, reference = Filter(), ReferenceFilter()
    world.subscribe(filter)
    world.subscribe(reference)  # type: ignore[arg-type]
    assert (world.profiles, world.items) == (300, 300 // WAREHOUSES)
    total = 0
    for rate in (0.1, 3):
        log = world.events(150, rate)
        found = pairs(filter.process(log))
        assert found == pairs(reference.process(log))
        total += len(found)
    stocks = [filter.context(name) for name in world.names]
    assert stocks == [reference.context(name) for name in world.names]
    assert 0 < total < 300 * WAREHOUSES
    assert min(stock["stock"] for stock in stocks) >= 0 and max(stock["stock"] for stock in stocks) <= FULL[1]


def test_some_items_are_hot() -> None:
    counts = np.sort(np.bincount(Orders(20_000, 2).hot_items(100_000)))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.2 * 100_000
