"""Half a million profiles of eight ranges: messages per second, against a NumPy scan and the best published figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from measure import Result, in_turns, main, progress, same
from tamis import Filter
from workloads import TEXT, ProgressiveScan, by_message, message_table, messages, ranges

PROFILES = 524_288
HEM5 = 7_500  # messages/s, published (C++, counts only, no ids), middle of 7,100 to 8,000
TARGET = 150
SAMPLE = 100


def run(scale: float = 1.0, repeats: int = 7) -> dict[str, Any]:
    """Both sides in turns; ids are materialised."""
    rng = np.random.default_rng(3)
    count, many, few = max(1_000, int(PROFILES * scale)), max(500, int(20_000 * scale)), 60
    result = Result(
        "ranges",
        "Ranges: eight ranges of 30 % per profile",
        f"{count:,} profiles of eight ranges over [0, 10⁶], uniform messages; tamis takes {many:,} messages per "
        f"repeat, the scan {few}; ids returned, one thread, {repeats} repeats in turns.",
        scale,
    )
    with progress("ranges", repeats + 3) as advance:
        profiles, values = ranges(rng, count), messages(rng, many)
        filter, scan = Filter(), ProgressiveScan(*profiles)
        advance("subscribe_many")
        filter.subscribe_many(TEXT, profiles.table())
        advance(f"exactness on {SAMPLE} messages")
        found = filter.match_many(message_table(values[:SAMPLE])).to_arrow()
        for row, ids in enumerate(by_message(found, SAMPLE)):
            same(ids, scan.match(values[row]).tolist(), f"message {row}")
        advance("measuring")
        table = message_table(values)
        filter.match_many(table)
        times = in_turns(
            {
                "tamis": (lambda: filter.match_many(table).to_arrow(), many),
                "scan": (lambda: scan.match_many(values[:few]), few),
            },
            repeats,
            lambda: advance("measuring"),
        )
        matches = len(filter.match_many(table)) / many
    tamis, numpy = times["tamis"], times["scan"]
    result.compare("tamis / NumPy progressive scan", numpy, tamis, TARGET)
    note = f"published {HEM5:,} messages/s, C++, counts without ids, another machine"
    result.add("tamis / HEM5 as published", tamis.rate / HEM5, "×", spread=tamis.spread, note=note)
    result.add("tamis", tamis.rate, "messages/s", spread=tamis.spread, note=f"{matches:.1f} matches per message")
    result.add("NumPy progressive scan", numpy.rate, "messages/s", spread=numpy.spread)
    result.exact = f"{SAMPLE} messages, {found.num_rows:,} matches, equal to the scan"
    result.data = {
        "bars": {"tamis": tamis.rate, "HEM5 (published, C++, counts only)": HEM5, "NumPy progressive scan": numpy.rate}
    }
    return result.to_dict()


if __name__ == "__main__":
    main(run)
