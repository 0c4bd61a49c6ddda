"""Kinds are fixed once, by the first evidence, all or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tamis.errors import EventError, ProfileError, UsageError
from tamis.model import tree as t
from tamis.model.language import parse, parse_effects
from tamis.model.schema import Schema
from tamis.model.values import NUMBER, TEXT, Kind


def admitted(*profiles: str, effects: str = "", schema: Mapping[str, str] | None = None) -> dict[str, str]:
    s = Schema(schema)
    for k, profile in enumerate(profiles):
        s.admit(parse(profile), parse_effects(effects) if effects else (), f"p{k}")
    return {name: str(s.kind(name) or "?") for name in s.names()}


@pytest.mark.parametrize(
    ("profile", "kinds"),
    [
        ("x > 5", {"x": "number"}),
        ("x == 'a' and f and not ctx.g", {"x": "text", "f": "boolean", "ctx.g": "boolean"}),
        ("x > date '2024-01-01'", {"x": "time"}),
        ("s like 'a%' and u matches 'a' and v startswith ctx.w", dict.fromkeys(("s", "u", "v", "ctx.w"), "text")),
        ("x in [1, 2] and 'a' in ctx.l", {"x": "number", "ctx.l": "list of text"}),
        ("distance(p, ctx.p) < r", {"p": "list of number", "ctx.p": "list of number", "r": "number"}),
        ("abs(a * b) < -c / 2", {"a": "number", "b": "number", "c": "number"}),
        ("a == ctx.b", {"a": "?", "ctx.b": "?"}),
        ("a == ctx.b and ctx.b < 'm'", {"a": "text", "ctx.b": "text"}),
        ("x in ctx.l and x == 3", {"x": "number", "ctx.l": "list of number"}),
        ("a between ctx.b and ctx.c and ctx.c > 1", {"a": "number", "ctx.b": "number", "ctx.c": "number"}),
        ("has(x)", {"x": "?"}),
        # + and - are ambiguous: number unless something known says time
        ("x - ctx.y < 5", {"x": "number", "ctx.y": "number"}),
        ("x - ctx.y < date '2024-01-01'", {"x": "time", "ctx.y": "number"}),
        ("x - date '2024-01-01' < 5", {"x": "time"}),
        ("x - date '2024-01-01' < ctx.d", {"x": "time", "ctx.d": "number"}),
        ("x - ctx.y < 5 and x > date '2024-01-01'", {"x": "time", "ctx.y": "time"}),
        ("x + y > date '2024-01-01'", {"x": "number", "y": "time"}),
    ],
)
def test_inferred(profile: str, kinds: dict[str, str]) -> None:
    assert admitted(profile) == kinds


def test_effects_and_declarations_are_evidence() -> None:
    assert admitted("has(q)", effects="ctx.n += q; ctx.last = s; ctx.s2 = 'x'") == {
        "q": "number",
        "ctx.n": "number",
        "ctx.last": "?",
        "s": "?",
        "ctx.s2": "text",
    }
    found = admitted("x - ctx.y < 5", schema={"ctx.y": "time"})
    assert found == {"x": "time", "ctx.y": "time"}


@pytest.mark.parametrize(
    ("profile", "code", "node"),
    [
        ("x == 'a'", "kind-conflict", t.Compare("==", t.Attribute("x"), t.Literal("a"))),
        ("new > 1 and new == 'a'", "kind-conflict", None),
        ("x in ctx.tags", "kind-conflict", None),
        ("x", "kind-conflict", None),
        ("abs('x') > 1", "kind", t.Function("abs", (t.Literal("x"),))),
        ("new < true", "kind", None),
        ("'a' < 5", "kind", None),
        ("new + 'a' > 1", "kind-conflict", None),
        ("1 in [1, 'a']", "kind", None),
        ("date '2024-01-01' + date '2024-01-01' > 1", "kind", None),
        ("ctx.tags == ctx.tags", "kind-conflict", None),
    ],
)
def test_a_refused_profile_leaves_nothing(profile: str, code: str, node: t.Node | None) -> None:
    schema = Schema({"x": "number", "ctx.tags": "list of text"})
    before, version = schema.to_dict(), schema.version
    with pytest.raises(ProfileError) as error:
        schema.admit(parse(f"(also > 3 or ctx.also == 'q') and {profile}"), profile="p9")
    assert error.value.code == code
    assert error.value.profile == "p9"
    assert node is None or error.value.node == node  # type: ignore[attr-defined]
    assert schema.to_dict() == before and schema.version == version


def test_a_conflict_names_both_evidences() -> None:
    schema = Schema()
    schema.admit(parse("quantity > 3"), profile="w-A")
    with pytest.raises(ProfileError, match=r"quantity is a number \(since profile 'w-A'\) and 'x' is text; .*schema="):
        schema.admit(parse("quantity == 'x'"), profile="w-B")


def test_values_fix_open_kinds_all_or_nothing() -> None:
    schema = Schema()
    schema.admit(parse("a == ctx.b and has(c) and low < ctx.high"), profile="p")
    version = schema.version
    reason = schema.observe({"c": 1, "a": "x", "low": True}, "since a message")
    assert reason == "low: expected a number or text or a time (since profile 'p'), got boolean True"
    assert schema.version == version and schema.kind("a") is None and schema.kind("c") is None
    assert schema.observe({"a": "x"}, "since a message") is None
    assert schema.kind("ctx.b") is TEXT
    assert schema.expect("ctx.b", 5) == "ctx.b: expected text (since a message), got number 5"
    assert schema.observe({"ctx.b": 5}, "since an update") is not None
    assert schema.observe({"ctx.new": (1,)}, "since an update") is None
    assert str(schema.kind("ctx.new")) == "list of number"
    assert schema.observe({"ctx.new": ()}, "") is None and schema.observe({"ctx.new": ("a",)}, "") is not None


def test_unified_values_of_one_message_must_agree() -> None:
    schema = Schema()
    schema.admit(parse("a == b"), profile="p")
    assert schema.observe({"a": 1, "b": "x"}, "m") == "b: expected a number (m), got text 'x'"
    assert schema.kind("a") is None
    assert schema.observe({"a": 1, "b": 2.5}, "m") is None


def test_empty_lists_leave_the_element_open() -> None:
    schema = Schema()
    schema.admit(parse("x in ctx.l"), profile="p")
    assert schema.observe({"ctx.l": ()}, "u") is None and schema.kind("x") is None
    assert schema.observe({"ctx.l": ("a",)}, "u") is None
    assert schema.kind("x") is TEXT


def test_odd_names_do_not_collide_with_contexts() -> None:
    schema = Schema()
    schema.admit(parse("`ctx.x` > 1 and ctx.x == 'a'"), profile="p")
    assert (schema.kind("`ctx.x`"), schema.kind("ctx.x")) == (NUMBER, TEXT)
    assert schema.message_attributes() == ["ctx.x"]


def test_parameters_have_given_kinds() -> None:
    schema = Schema()
    schema.admit(parse("x > {limit} and y == {open}"), profile="p", parameters={"limit": NUMBER})
    assert schema.kind("x") is NUMBER and schema.kind("y") is None
    with pytest.raises(ProfileError, match="kind-conflict"):
        schema.admit(parse("x == {name}"), parameters={"name": TEXT})


def test_infer_and_save() -> None:
    schema = Schema({"now": "time"})
    schema.admit(parse("a == ctx.b and x in ctx.l and now - ctx.start > 5 and ctx.start < now"), profile="p")
    version = schema.version
    difference = t.Arithmetic("-", t.Attribute("now"), t.Context("start"))
    assert schema.infer(difference) is NUMBER
    assert schema.infer(t.Attribute("a")) is None
    assert schema.infer(t.Arithmetic("+", t.Attribute("now"), t.Literal(1))) == Kind.parse("time")
    assert schema.version == version
    copy = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert copy.to_dict() == schema.to_dict() and copy.version == version
    copy.fix("a", TEXT, "since a test")
    copy.fix("x", NUMBER, "since a test")
    assert copy.kind("ctx.b") is TEXT and str(copy.kind("ctx.l")) == "list of number"
    assert schema.kind("a") is None
    with pytest.raises(EventError, match="expected text"):
        copy.fix("a", NUMBER, "since a test")


def test_declare_is_all_or_nothing() -> None:
    schema = Schema({"x": "number"})
    with pytest.raises(UsageError, match="x cannot be declared as text: it is number"):
        schema.declare({"y": "text", "x": "text"})
    assert schema.names() == ["x"]
    with pytest.raises(UsageError, match="did you mean 'number'"):
        schema.declare({"y": "int"})


def test_known_profiles_change_nothing() -> None:
    schema = Schema()
    tree = parse("a > 1 and b in ['x'] and ctx.f and abs(a - ctx.a) <= 3 and s like 'a%' and has(a)")
    schema.admit(tree, parse_effects("ctx.a = a"), profile=1)
    version = schema.version
    schema.admit(tree, parse_effects("ctx.a = a"), profile=2)
    assert schema.version == version and schema.evidence("a") == "since profile 1"
