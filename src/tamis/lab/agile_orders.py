"""Orders and stock, in the spirit of TPC-C, which the AGILE paper names as future work (Section 7).

Every item of every warehouse is a context with its stock, and a profile: it takes an order line when it has enough, and
the goods leave the stock on the match. Deliveries set a stock anew. Items are ordered as TPC-C does, by NURand: few are
hot. So most updates of the context come out of the matches themselves.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis import EventLog, Filter

from . import plots
from .agile import FOUR, NOISE, beside, budget_at, group_lines, profiles_at
from .contenders import ALL, chosen
from .experiment import ORDER, Findings, Inexact, Judge, Plot, Quantity, Setting
from .plots import Panel
from .race import Grid, Plan, Race, steady

WAREHOUSES: Final = 10
DELIVERIES: Final = (0.1, 1.0, 10.0, 100.0)  # per order line
FULL: Final = (10, 100)  # stock after a delivery, as TPC-C fills its warehouses
MOST: Final = 10  # pieces of one order line
HOT: Final = 8_191  # A of TPC-C's NURand over 100,000 items
TEXT: Final = "item == {item} and quantity <= ctx.stock"
EFFECT: Final = "ctx.stock -= quantity"


class Orders:
    """Warehouses × items, and a generator of order lines and deliveries."""

    def __init__(self, profiles: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.items = max(1, profiles // WAREHOUSES)
        self.profiles = self.items * WAREHOUSES
        self.names = [f"w{k // self.items}/i{k % self.items}" for k in range(self.profiles)]
        self.stock = self.rng.integers(FULL[0], FULL[1] + 1, self.profiles)
        self._shift = int(self.rng.integers(0, self.items))
        # TPC-C's A is a power of two less one, about a twelfth of the items.
        self._hot = 2 ** max(0, int(self.items * HOT / 100_000).bit_length()) - 1
        self._owed = 0.0

    def subscribe(self, filter: Filter) -> None:
        """Stock and profiles into a filter; ids are 0 to profiles - 1."""
        indices = filter.context_index(self.names)
        if not np.array_equal(indices, np.arange(self.profiles)):
            raise Inexact("contexts are not numbered in the order of their names")
        filter.update_many(indices, "stock", self.stock)
        ids = np.arange(self.profiles)
        filter.subscribe_many(TEXT, {"id": ids, "context": indices, "item": ids % self.items}, on_match=EFFECT)

    def hot_items(self, count: int) -> NDArray[np.int64]:
        """Items by TPC-C's NURand: uniform, or-ed with a smaller uniform number, shifted."""
        uniform = self.rng.integers(0, self.items, count) | self.rng.integers(0, self._hot + 1, count)
        return (uniform + self._shift) % self.items

    def events(self, messages: int, updates: float) -> EventLog:
        """The next log: that many deliveries before every order line."""
        ends = np.floor(self._owed + updates * np.arange(1, messages + 1) + 1e-9).astype(np.int64)
        count = int(ends[-1])
        self._owed += updates * messages - count
        lines = {
            "item": self.hot_items(messages),
            "quantity": self.rng.integers(1, MOST + 1, messages),
            "seq": ends - 1,
        }
        context = self.rng.integers(0, WAREHOUSES, count) * self.items + self.hot_items(count)
        deliveries = {
            "context": context,
            "attribute": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["stock"])),
            "value": self.rng.integers(FULL[0], FULL[1] + 1, count),
            "seq": np.arange(count, dtype=np.int64),
        }
        return EventLog.merge(messages=lines, updates=deliveries)

    def now(self) -> None:
        """Stock depends on all matches before."""

    def last(self) -> None:
        """Stock depends on all matches before: the reference filter knows, brute force on one message does not."""


def orders(setting: Setting) -> Findings:
    """Order lines per second, over the number of deliveries per order line."""
    plots.needed()
    contenders, profiles = chosen(setting), profiles_at(setting.scale)
    grid = Grid("deliveries per order line", DELIVERIES)
    total, finished = len(DELIVERIES) * len(contenders), 0
    for point in DELIVERIES:
        what = f"{point:g} deliveries per order line"
        setting.progress(finished, total, f"{what}: loading")
        world = Orders(profiles, setting.seed)
        race = Race(contenders, world)

        def done(name: str, what: str = what) -> None:
            nonlocal finished
            finished += 1
            setting.progress(finished, total, f"{what}: {name} done")

        found = steady(race, point, Plan(budget_at(setting), enough=2 * world.profiles, most=5_000_000), done)
        grid.standings.update({(name, point): found[name] for name in contenders})
    judge = Judge(setting.scale)
    for point in DELIVERIES:
        judge.at_least(
            f"blocks is as fast as the best of the paper's four at {point:g} deliveries per order line (3 % for noise)",
            Quantity("blocks", lambda point=point: grid.rate("blocks", point)),  # type: ignore[misc]
            Quantity(
                f"{NOISE:g} × the best of the four",
                lambda point=point: NOISE * grid.best(FOUR, point),  # type: ignore[misc]
            ),
            scale=ORDER,
            unit="lines/s",
            whose="tamis",
        )
    judge.at_least(
        "AGILE is at least as fast as EAGER where deliveries are most (3 % for noise)",
        Quantity("AGILE", lambda: grid.rate("AGILE", DELIVERIES[-1])),
        Quantity(f"{NOISE:g} × EAGER", lambda: NOISE * grid.rate("EAGER", DELIVERIES[-1])),
        scale=ORDER,
        unit="lines/s",
        whose="tamis",
    )
    given: dict[str, Any] = {
        "profiles": world.profiles,
        "warehouses": WAREHOUSES,
        "items": world.items,
        "profile": TEXT,
        "on_match": EFFECT,
        "order lines per run": 10_000,
        "deliveries per order line": list(DELIVERIES),
        "seconds per contender and point": budget_at(setting),
        "contenders": {name: dict(options) for name, options in contenders.items()},
    }
    panel = Panel(
        "Order lines and deliveries",
        "deliveries per order line",
        "order lines per second",
        group_lines(grid, ALL, lambda one: one.rate),
        logx=True,
        logy=True,
        ticks=DELIVERIES,
    )
    title = "Throughput (order lines per second)"
    return Findings(
        given,
        grid.to_list(),
        [beside(title, grid, lambda one: one.rate, {})],
        judge.claims,
        [Plot("", f"{world.items:,} items in {WAREHOUSES} warehouses", plots.draw([panel], "orders", 4.6))],
        [
            "An order line matches every warehouse that has enough, at most ten, and each match changes a stock; the "
            "matches of all contenders were equal on every log."
        ],
    )
