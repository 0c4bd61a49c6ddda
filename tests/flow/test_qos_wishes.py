"""Wishes: the method that keeps all of them, or an error that says which collide."""

from __future__ import annotations

import pytest

from tamis import UsageError
from tamis.flow import Batch, Flow, Hybrid, Policy, Shed, Traditional, batch_size, choose


@pytest.mark.parametrize(
    ("wishes", "policy"),
    [
        ("", Batch()),
        ("no errors", Batch()),
        ("no false negatives, no false positives", Batch()),
        ("one at a time", Traditional()),
        ("fresh state", Batch("no outdated state")),
        ("no premature state", Batch("no premature state")),
        ("latency <= 200ms", Hybrid(0.2)),
        ("Max latency 5 s", Hybrid(5.0)),
        ("latency under 1 minute; fresh state", Hybrid(60.0, consistency="no outdated state")),
        ("latency <= 200ms and no false positives", Hybrid(0.2, "messages")),
        ("latency <= 200ms, shed updates", Hybrid(0.2, "updates")),
        ("latency <= 1s, one at a time, shed messages", Shed(1.0, "messages")),
        ("latency <= 1s, one at a time", Shed(1.0)),
        ("max jitter 50ms", Batch(limit=0.05)),
        ("latency <= 1s, jitter <= 100 ms, batch time <= 50ms", Hybrid(1.0, limit=0.05)),
        ("latency <= 1s, no errors, prefer no errors", Batch(latency=1.0)),
        ("latency <= 1s, no errors, prefer latency", Hybrid(1.0, "messages")),
        ("latency <= 1s, no false negatives, prefer no errors", Batch(latency=1.0)),
        (["latency <= 200ms", "no false positives"], Hybrid(0.2, "messages")),
    ],
)
def test_the_closest_fit_is_chosen_and_explained(wishes: str | list[str], policy: Policy) -> None:
    choice = choose(wishes)
    assert choice.policy == policy
    assert choice.reasons and all(reason.endswith(".") for reason in choice.reasons)
    assert Flow(policy=wishes).policy == policy


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ("latency <= 200", "no unit"),
        ("latency <= 200 parsecs", "'parsecs'; expected one of us, ms, s, min"),
        ("latency <= 0ms", "above nought"),
        ("latency <= 1.2.3ms", "not a number"),
        ("latency", "not understood"),
        ("no false negativs", "did you mean 'no false negatives'"),
        ("latency <= 1s, latency <= 2s", "two different bounds on latency"),
        ("fresh state, no premature state", "choose one"),
        ("fresh state, no errors", "leave out"),
        ("latency <= 1s, no errors", "Add 'prefer latency' or 'prefer no errors'"),
        ("latency <= 1s, no false negatives", "cannot both be kept"),
        ("latency <= 1s, no false positives, shed updates", "only messages can be shed"),
        ("prefer latency, prefer no errors", "contradict"),
        ("shed messages", "add one, such as"),
        ("one at a time, fresh state", "no batches"),
        ("one at a time, batch time <= 1s", "no batches"),
    ],
)
def test_wrong_wishes_get_clear_errors(wishes: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        choose(wishes)


def test_wishes_are_words() -> None:
    with pytest.raises(UsageError, match="expected words"):
        choose([5])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="policy: expected Traditional"):
        Flow(policy=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Shed(0), "bound: expected a number of seconds"),
        (lambda: Shed(True), "bound"),
        (lambda: Shed(1.0, "profiles"), "what: expected one of 'messages', 'updates', 'both'"),
        (lambda: Shed(1.0, "both", 1.5), "prefer: expected a share"),
        (lambda: Hybrid(float("inf")), "bound"),
        (lambda: Batch("random"), "consistency: expected one of 'serial'"),
        (lambda: Batch(limit=-1.0), "limit"),
        (lambda: Batch(latency=0.1, wait=0.2), "leave nothing"),
    ],
)
def test_policies_check_what_they_are_given(make: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()  # type: ignore[operator]


def test_the_batch_size_of_the_latency_model() -> None:
    # Paper 002, Section 7.2: n < latency / (1 / rate + matching)
    assert batch_size(10.0, 450.0, 1 / 4_140) < 10 / (1 / 450 + 1 / 4_140)
    assert batch_size(10.0, 450.0, 1 / 4_140) + 1 >= 10 / (1 / 450 + 1 / 4_140)
    assert batch_size(0.01, 1_000.0, 0.001, fixed=0.02) == 0
