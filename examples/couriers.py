"""Couriers who move: a message goes to everybody near it who is free.

Run it with ``python examples/couriers.py``.
"""

from __future__ import annotations

import numpy as np

from tamis import EventLog, Filter


def main() -> None:
    """2,000 couriers, 5,000 movements, 1,000 jobs, in one order."""
    random = np.random.default_rng(1)
    couriers = [f"courier-{n}" for n in range(2_000)]

    f = Filter()
    f.subscribe_many(
        "distance(place, ctx.place) <= {radius} and weight <= {load} and not ctx.busy",
        {
            "id": couriers,
            "context": couriers,
            "radius": random.uniform(5, 20, len(couriers)),
            "load": random.integers(5, 30, len(couriers)),
        },
    )
    f.update_many(couriers, "busy", random.random(len(couriers)) < 0.5)
    f.update_many(couriers, "place", list(random.uniform(0, 1_000, (len(couriers), 2)).tolist()))

    sequence = random.permutation(6_000)
    log = EventLog.merge(
        messages={
            "seq": np.sort(sequence[:1_000]),
            "place": random.uniform(0, 1_000, (1_000, 2)),
            "weight": random.integers(1, 25, 1_000),
        },
        updates={
            "seq": np.sort(sequence[1_000:]),
            "context": [couriers[n] for n in random.integers(0, len(couriers), 5_000)],
            "attribute": ["place"] * 5_000,
            "value": random.uniform(0, 1_000, (5_000, 2)).tolist(),
        },
    )
    matches = f.process(log)
    offered = matches.by_message()
    print(f"{len(log):,} events, {len(matches):,} offers for {len(offered):,} jobs")
    job, candidates = next(iter(offered.items()))
    print(f"job {job} was offered to {', '.join(map(str, candidates))}")


if __name__ == "__main__":
    main()
