"""A trader's desk: alerts that compare each tick with the last one, and with a portfolio that changes.

Run it with ``python examples/trading.py``.
"""

from __future__ import annotations

from tamis import Filter


def main() -> None:
    """Ticks keep the last price per symbol by themselves; profiles compare with it."""
    f = Filter()
    f.track(context="{symbol}", set="last = price", when="type == 'tick'")
    f.subscribe("jump", "type == 'tick' and symbol == 'ACME' and price > ctx.last * 1.02", context="ACME")
    f.subscribe("mine", "type == 'tick' and symbol in ctx.portfolio", context="desk-1")
    f.update("desk-1", portfolio=["ACME"])

    for price in (100.0, 101.0, 104.5):
        print(price, f.match({"type": "tick", "symbol": "ACME", "price": price}))

    f.update("desk-1", portfolio=["INITECH"])
    print("sold", f.match({"type": "tick", "symbol": "ACME", "price": 104.0}))


if __name__ == "__main__":
    main()
