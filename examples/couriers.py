"""Couriers who move: a job goes to everybody near it who is free.

Run it with ``python examples/couriers.py``.
"""

from __future__ import annotations

import numpy as np

from tamis import EventLog, Filter

# The square around the courier is what an index can use; the circle is tested for those in the square.
NEAR = """
    x between ctx.x - {radius} and ctx.x + {radius}
    and y between ctx.y - {radius} and ctx.y + {radius}
    and distance([x, y], [ctx.x, ctx.y]) <= {radius}
    and weight <= {load} and not ctx.busy
"""


def main() -> None:
    """20,000 couriers, 100,000 movements, 10,000 jobs, in one order."""
    random = np.random.default_rng(1)
    n, moves, jobs = 20_000, 50_000, 10_000
    couriers = [f"courier-{i}" for i in range(n)]
    place = random.uniform(0, 1_000, (n, 2))

    f = Filter(schema={"ctx.x": "number", "ctx.y": "number", "ctx.busy": "boolean"})
    # Values first, profiles second: the index is laid out by what it knows.
    f.update_many(couriers, "x", place[:, 0])
    f.update_many(couriers, "y", place[:, 1])
    f.update_many(couriers, "busy", random.random(n) < 0.5)
    f.subscribe_many(
        NEAR,
        {
            "id": couriers,
            "context": couriers,
            "radius": random.uniform(2, 8, n),
            "load": random.integers(5, 30, n),
        },
    )

    # Every movement is two updates, x and y, at the same point of the order; a job is a message between them.
    sequence = random.permutation(moves + jobs)
    who, step = random.integers(0, n, moves), random.uniform(-5, 5, (moves, 2))
    log = EventLog.merge(
        messages={
            "seq": np.sort(sequence[:jobs]),
            "x": random.uniform(0, 1_000, jobs),
            "y": random.uniform(0, 1_000, jobs),
            "weight": random.integers(1, 25, jobs),
        },
        updates={
            "seq": np.repeat(np.sort(sequence[jobs:]), 2),
            "context": f.context_index(couriers)[np.repeat(who, 2)],
            "attribute": np.tile(["x", "y"], moves),
            "value": (place[who] + step).reshape(-1),
        },
    )
    matches = f.process(log)
    offered = matches.by_message()
    print(f"{len(log):,} events, {len(matches):,} offers for {len(offered):,} jobs")
    job, candidates = next(iter(offered.items()))
    print(f"job {job} was offered to {', '.join(map(str, candidates))}")


if __name__ == "__main__":
    main()
