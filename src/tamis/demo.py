"""The warehouse story of the AGILE paper, large enough to feel: orders find warehouses, and change them by doing so.

Every warehouse is a context with a place and a stock per item. A profile stands for one item of one warehouse: it
matches the orders that the warehouse can deliver (enough in stock, close enough to the customer), and on a match the
goods leave the stock. A second stream refills the shelves. Guarantees the same story for the same seed, and compares
a smaller run of it, match by match, with the naive reference filter.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tamis import Filter
    from tamis.reference import ReferenceFilter

ITEMS = ("bolt", "nut", "washer", "hinge", "bracket", "spring", "gasket", "bearing", "valve", "gear")
SIDE = 1_000.0  # warehouses and customers live on a square map, in kilometres
NEAR = 12.0  # warehouses that reach a customer, on average: more warehouses, shorter reaches
SLICES = 40  # event logs the story is cut into, so that the progress bar moves
SMALL = (300, 2_000)  # profiles and events of the run that is compared with the reference


class Story(NamedTuple):
    """The input of one run: warehouses, and two streams in one order (``seq``)."""

    prepared: dict[str, dict[str, Any]]  # prepared profile by item: the table of its profiles
    names: list[str]  # of the warehouses
    start: dict[str, NDArray[Any]]  # attribute: one starting value per warehouse
    messages: dict[str, NDArray[Any]]
    updates: dict[str, NDArray[Any]]
    events: int


def condition(item: str) -> str:
    """The prepared profile of one item; ``{reach}`` differs from warehouse to warehouse."""
    return (
        f"type == 'order' and item == '{item}' and quantity <= ctx.{item} "
        "and abs(x - ctx.x) <= {reach} and abs(y - ctx.y) <= {reach}"
    )


def tell(profiles: int, events: int, seed: int) -> Story:
    """A story with that many profiles and events; one event in four is a restock."""
    random = np.random.default_rng(seed)
    warehouses = -(-profiles // len(ITEMS))
    names = [f"warehouse-{n:05d}" for n in range(warehouses)]
    mean = min(SIDE / 2, SIDE * float(np.sqrt(NEAR / warehouses)) / 2)
    reach = random.uniform(0.5 * mean, 1.5 * mean, warehouses).round(1)
    prepared: dict[str, dict[str, Any]] = {}
    for k, item in enumerate(ITEMS):
        # The last warehouse may lack some items, so that the number of profiles is the one asked for.
        count = (profiles - k + len(ITEMS) - 1) // len(ITEMS)
        ids = [f"{name}/{item}" for name in names[:count]]
        prepared[item] = {"id": ids, "context": names[:count], "reach": reach[:count]}
    start: dict[str, NDArray[Any]] = {item: random.integers(0, 60, warehouses) for item in ITEMS}
    start |= {axis: random.uniform(0, SIDE, warehouses).round(1) for axis in ("x", "y")}

    restocks = events // 4
    orders = events - restocks
    sequence = random.permutation(events)
    quantity: NDArray[Any] = random.integers(1, 13, orders).astype(object)
    quantity[random.choice(orders, -(-orders // 20_000), replace=False)] = "seven"  # somebody always spells it out
    items = np.array(ITEMS, dtype=object)
    messages: dict[str, NDArray[Any]] = {
        "seq": np.sort(sequence[:orders]),
        "type": np.full(orders, "order", dtype=object),
        "item": items[random.integers(0, len(ITEMS), orders)],
        "quantity": quantity,
        "x": random.uniform(0, SIDE, orders).round(1),
        "y": random.uniform(0, SIDE, orders).round(1),
    }
    updates: dict[str, NDArray[Any]] = {
        "seq": np.sort(sequence[orders:]),
        "context": np.array(names, dtype=object)[random.integers(0, warehouses, restocks)],
        "attribute": items[random.integers(0, len(ITEMS), restocks)],
        "value": random.integers(20, 100, restocks),
    }
    return Story(prepared, names, start, messages, updates, events)


def prepare(target: Filter | ReferenceFilter, story: Story, advance: Callable[[int], None]) -> None:
    """Profiles and starting stock into a filter."""
    for item, table in story.prepared.items():
        target.subscribe_many(condition(item), table, on_match=f"ctx.{item} -= quantity")
        advance(len(table["id"]))
    for attribute, values in story.start.items():
        target.update_many(story.names, attribute, values)


def slices(story: Story, count: int) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """The two streams in ``count`` pieces of the same order: row number of the first message, messages, updates."""
    bounds = np.linspace(0, story.events, count + 1).astype(np.int64)
    cuts = [np.searchsorted(stream["seq"], bounds) for stream in (story.messages, story.updates)]
    for k in range(count):
        pieces = [
            {name: column[cut[k] : cut[k + 1]] for name, column in stream.items()}
            for stream, cut in zip((story.messages, story.updates), cuts, strict=True)
        ]
        yield int(cuts[0][k]), pieces[0], pieces[1]


class Outcome(NamedTuple):
    """What came out of a run; message numbers count over the whole story."""

    message: list[int]
    profile: list[str]
    rejected: list[tuple[str, int, str]]


def play(
    target: Filter | ReferenceFilter, story: Story, count: int = 1, advance: Callable[[int], None] = lambda n: None
) -> Outcome:
    """The story through a filter."""
    from tamis import EventLog

    outcome = Outcome([], [], [])
    for first, messages, updates in slices(story, count):
        found = target.process(EventLog.merge(messages=messages, updates=updates, order="seq"))
        outcome.message.extend((found.message + first).tolist())
        outcome.profile.extend(found.profile)
        outcome.rejected.extend((item.kind, item.row + first, item.reason) for item in found.rejected)
        advance(len(messages["seq"]) + len(updates["seq"]))
    return outcome


def run(profiles: int = 50_000, events: int = 200_000, seed: int = 7) -> None:
    """Tells the story on the terminal."""
    from tamis import Filter

    console = Console()
    story = tell(profiles, events, seed)
    orders, restocks = len(story.messages["seq"]), len(story.updates["seq"])
    console.print(
        Panel(
            f"{len(story.names):,} warehouses, {profiles:,} profiles, {orders:,} orders and {restocks:,} restocks "
            "in one order.\nA warehouse gets an order when it has enough in stock and reaches the customer; "
            "the goods then leave the stock.\n\n" + condition("bolt").replace(" and ", "\n  and ", 2),
            title="tamis: the warehouse story",
        ),
        highlight=False,
    )
    target = Filter()
    columns = (TextColumn("{task.description:<18}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        warm = bar.add_task("kernels (once)", total=1)
        small = tell(*SMALL, seed)
        checked = Filter()
        prepare(checked, small, lambda n: None)
        fast = play(checked, small)
        bar.advance(warm)

        loading = bar.add_task("profiles", total=profiles)
        clock = time.perf_counter()
        prepare(target, story, lambda n: bar.advance(loading, n))
        loaded = time.perf_counter() - clock

        matching = bar.add_task("events", total=events)
        clock = time.perf_counter()
        outcome = play(target, story, SLICES, lambda n: bar.advance(matching, n))
        matched = time.perf_counter() - clock

        proof = bar.add_task("reference check", total=1)
        same = agrees(small, fast, seed)
        bar.advance(proof)
    show(console, target, story, outcome, (loaded, matched), same)
    if not same:
        raise SystemExit("the engine and the reference filter disagree: please report this as a bug")


def agrees(story: Story, outcome: Outcome, seed: int) -> bool:
    """Whether the naive reference filter comes to the same matches and rejections, message by message."""
    from tamis.reference import ReferenceFilter

    naive = ReferenceFilter()
    prepare(naive, story, lambda n: None)
    expected = play(naive, story)
    pairs = [sorted(zip(o.message, o.profile, strict=True)) for o in (outcome, expected)]
    refused = [sorted((kind, row) for kind, row, _ in o.rejected) for o in (outcome, expected)]
    return pairs[0] == pairs[1] and refused[0] == refused[1]


def show(
    console: Console, target: Filter, story: Story, outcome: Outcome, seconds: tuple[float, float], same: bool
) -> None:
    """The result for people."""
    loaded, matched = seconds
    profiles = sum(len(table["id"]) for table in story.prepared.values())
    orders = len(story.messages["seq"])
    numbers = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    numbers.add_row("profiles loaded", f"{profiles:,}", f"{profiles / loaded:,.0f} per second")
    numbers.add_row("events processed", f"{story.events:,}", f"{story.events / matched:,.0f} per second")
    numbers.add_row("matches", f"{len(outcome.message):,}", f"{len(outcome.message) / orders:.2f} per order")
    unserved = orders - len(set(outcome.message))
    numbers.add_row("orders nobody could take", f"{unserved:,}", f"{unserved / orders:.1%}")
    numbers.add_row("rejected", f"{len(outcome.rejected):,}", outcome.rejected[0][2] if outcome.rejected else "")
    verdict = Text("equal, match by match", "green") if same else Text("DIFFERENT", "red")
    numbers.add_row("reference filter", f"{SMALL[0]:,} profiles, {SMALL[1]:,} events", verdict)
    console.print(numbers)

    busiest = Counter(id.partition("/")[0] for id in outcome.profile).most_common(5)
    table = Table("warehouse", "orders", "stock left", title="busiest warehouses", title_justify="left")
    for name, count in busiest:
        left = target.context(name)
        table.add_row(name, f"{count:,}", ", ".join(f"{left[item]:g} {item}" for item in ITEMS[:4]))
    console.print(table)

    if outcome.message:
        row, id = outcome.message[-1], outcome.profile[-1]
        order = {name: _python(column[row]) for name, column in story.messages.items() if name != "seq"}
        order["quantity"] = 500
        console.print(Panel(Text(str(target.explain(id, order))), title=f"why {id} would not take 500 of them"))


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
