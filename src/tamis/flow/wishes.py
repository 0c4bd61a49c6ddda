"""Wishes: what a user wants of a flow, in words, and the method that is the closest fit, with reasons.

Guarantees that a policy is only chosen when it keeps every wish, that wishes no method can keep together are an error
that says which of them collide and what to give up, and that every choice is explained. Refuses to know queues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tamis.errors import UsageError
from tamis.model.tables import did_you_mean

from .chunk import Consistency
from .classes import What
from .policies import Batch, Hybrid, Policy, Shed, Traditional

UNITS: Final = {
    **dict.fromkeys(("us", "µs", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
}
PLAIN: Final = {
    "no errors": "errors",
    "exact": "errors",
    "no false negatives": "negatives",
    "no false positives": "positives",
    "fresh state": "fresh",
    "no outdated state": "fresh",
    "no premature state": "premature",
    "serial order": "serial",
    "one at a time": "single",
    "shed messages": "shed messages",
    "shed updates": "shed updates",
    "prefer latency": "prefer latency",
    "prefer no errors": "prefer no errors",
}
BOUNDS: Final = ("latency", "jitter", "batch time")
_BOUND: Final = re.compile(
    r"(?:(?:max|maximum)\s+)?(?P<what>latency|jitter|batch\s+time)\s*"
    r"(?P<sign><=|<|≤|=<|under|below|within|at\s+most|of|:|=)?\s*(?P<number>[0-9.]+(?:e[+-]?[0-9]+)?)\s*(?P<unit>[a-zµ]+)?"
)
EXAMPLES: Final = "'latency <= 200ms', 'jitter <= 50ms', 'no false negatives', 'fresh state'"


@dataclass(frozen=True)
class Choice:
    """A policy, and why it was chosen: one sentence per reason."""

    policy: Policy
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.policy}", *(f"- {reason}" for reason in self.reasons)])


def choose(wishes: str | Iterable[str]) -> Choice:
    """The method that keeps all wishes.

    >>> print(choose("latency <= 200ms, no false positives"))
    Hybrid(bound=0.2, what='messages', prefer=None, consistency='serial', limit=None)
    - latency <= 0.2 s: batches while they are fast enough; what still breaks the bound is shed.
    - no false positives: only messages are shed, because a lost update makes false positives, too.
    - the serial order is kept, which no wish forbids: batches then make no errors of their own.
    """
    bounds, plain = read(wishes)
    _collide(bounds, plain)
    reasons: list[str] = []
    consistency = _consistency(plain, reasons)
    latency, jitter = bounds.get("latency"), bounds.get("jitter")
    limit = min((bounds[name] for name in ("batch time", "jitter") if name in bounds), default=None)
    exact = "errors" in plain or {"negatives", "positives"} <= plain
    if latency is not None and (exact or "negatives" in plain) and "prefer no errors" in plain:
        reasons.insert(0, f"no errors go before latency <= {latency:g} s: nothing is shed, and batches are kept short.")
        return Choice(Batch(consistency, limit, latency), tuple(reasons))
    if latency is None:
        return _unbounded(plain, consistency, limit, jitter, reasons)
    what = _what(plain, reasons)
    if "single" in plain:
        reasons.insert(0, f"latency <= {latency:g} s, one at a time: what breaks the bound is shed.")
        return Choice(Shed(latency, what), tuple(reasons))
    reasons.insert(
        0, f"latency <= {latency:g} s: batches while they are fast enough; what still breaks the bound is shed."
    )
    if limit is not None:
        reasons.append(_limited(bounds, limit))
    return Choice(Hybrid(latency, what, None, consistency, limit), tuple(reasons))


def read(wishes: str | Iterable[str]) -> tuple[dict[str, float], set[str]]:
    """Bounds in seconds, and the other wishes by their key; a wish nobody understands is an error."""
    texts = re.split(r"[,;\n]|\band\b", wishes) if isinstance(wishes, str) else list(wishes)
    bounds: dict[str, float] = {}
    plain: set[str] = set()
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"wish: expected words such as {EXAMPLES}, got {text!r}")
        wish = " ".join(text.lower().split())
        if not wish:
            continue
        if wish in PLAIN:
            plain.add(PLAIN[wish])
            continue
        found = _BOUND.fullmatch(wish)
        if found is None:
            near = did_you_mean(wish, [*PLAIN, *BOUNDS])
            raise UsageError(f"wish: {text.strip()!r} is not understood; known: {', '.join(PLAIN)}, {EXAMPLES}{near}")
        name, seconds = _bound(found, text.strip())
        if bounds.setdefault(name, seconds) != seconds:
            raise UsageError(f"wish: two different bounds on {name}: {bounds[name]:g} s and {seconds:g} s")
    return bounds, plain


def _bound(found: re.Match[str], text: str) -> tuple[str, float]:
    name = " ".join(found["what"].split())
    unit = found["unit"]
    if unit is None:
        raise UsageError(f"wish: {text!r} has no unit; expected one of us, ms, s, min, such as '{name} <= 200ms'")
    if unit not in UNITS:
        raise UsageError(f"wish: {text!r} has the unit {unit!r}; expected one of us, ms, s, min")
    try:
        seconds = float(found["number"]) * UNITS[unit]
    except ValueError:
        raise UsageError(f"wish: {text!r}: {found['number']!r} is not a number") from None
    if seconds <= 0:
        raise UsageError(f"wish: {text!r}: a bound must be above nought")
    return name, seconds


def _collide(bounds: dict[str, float], plain: set[str]) -> None:
    """Wishes that no method can keep together."""
    exact = "errors" in plain or {"negatives", "positives"} <= plain
    orders = [wish for wish in ("fresh", "premature", "serial") if wish in plain]
    words = {"fresh": "fresh state", "premature": "no premature state", "serial": "serial order"}
    if len(orders) > 1:
        raise UsageError(
            f"wishes: '{words[orders[0]]}' and '{words[orders[1]]}' are two orders of the same batch; choose one"
        )
    if orders and orders[0] != "serial" and plain & {"errors", "negatives", "positives"}:
        raise UsageError(
            f"wishes: '{words[orders[0]]}' works batches in another order than events came, which can make both sorts "
            "of errors compared with the serial order; leave out the one or the other"
        )
    if "single" in plain and ((orders and orders[0] != "serial") or "batch time" in bounds):
        raise UsageError(
            "wishes: 'one at a time' has no batches, and so no order or time of them; leave out one of the two"
        )
    if {"prefer latency", "prefer no errors"} <= plain:
        raise UsageError("wishes: 'prefer latency' and 'prefer no errors' contradict each other; choose one")
    if {"shed messages", "shed updates"} <= plain:
        plain -= {"shed messages", "shed updates"}
    if "latency" in bounds and "prefer no errors" not in plain and "prefer latency" not in plain:
        if exact or "negatives" in plain:
            what = "no errors" if exact else "no false negatives"
            raise UsageError(
                f"wishes: 'latency <= {bounds['latency']:g} s' and '{what}' cannot both be kept when more comes than "
                "can be worked: a bound is held by shedding, and what is shed is missed. Add 'prefer latency' or "
                "'prefer no errors'"
            )
        if "positives" in plain and "shed updates" in plain:
            raise UsageError(
                "wishes: 'shed updates' makes false positives; with 'no false positives' only messages can be shed"
            )
    if "latency" not in bounds and plain & {"shed messages", "shed updates"}:
        raise UsageError("wishes: something is shed only to hold a bound; add one, such as 'latency <= 5s'")


def _consistency(plain: set[str], reasons: list[str]) -> Consistency:
    if "fresh" in plain:
        reasons.append("fresh state: the updates of a batch go first, so that no message meets an outdated context.")
        return "no outdated state"
    if "premature" in plain:
        reasons.append("no premature state: the messages of a batch go first, before updates that came after them.")
        return "no premature state"
    if "single" not in plain:
        reasons.append("the serial order is kept, which no wish forbids: batches then make no errors of their own.")
    return "serial"


def _what(plain: set[str], reasons: list[str]) -> What:
    if "shed messages" in plain:
        reasons.append("only messages are shed, as wished.")
        return "messages"
    if "shed updates" in plain:
        reasons.append("only updates are shed, as wished: a burst of messages alone can break the bound.")
        return "updates"
    if plain & {"positives", "errors"}:
        reasons.insert(
            0, "no false positives: only messages are shed, because a lost update makes false positives, too."
        )
        return "messages"
    how = "shed alike" if "single" in plain else "shed, first those whose loss makes the fewest errors"
    reasons.append(f"messages and updates are {how}; 'no false positives' would shed messages only.")
    return "both"


def _unbounded(
    plain: set[str], consistency: Consistency, limit: float | None, jitter: float | None, reasons: list[str]
) -> Choice:
    if "single" in plain:
        reasons.insert(0, "one at a time: traditional processing, which makes no errors and gives no bound on latency.")
        return Choice(Traditional(), tuple(reasons))
    if consistency == "serial":
        reasons.insert(0, "no bound on latency is wished: nothing is shed.")
    else:
        reasons.insert(0, "no bound on latency is wished: nothing is shed, every event is worked once.")
    if limit is not None:
        bounds = {"jitter": jitter} if jitter is not None else {}
        reasons.append(_limited({k: v for k, v in bounds.items() if v is not None}, limit))
    return Choice(Batch(consistency, limit), tuple(reasons))


def _limited(bounds: dict[str, float], limit: float) -> str:
    why = "jitter, which is how long a batch keeps its first message longer than its last" if "jitter" in bounds else ""
    return f"a batch takes at most {limit:g} s{', for the bound on ' + why if why else ''}."
