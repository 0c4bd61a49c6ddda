from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tamis.errors import ProfileError, UsageError
from tamis.model import language
from tamis.model.language import locate, parse, parse_effects, tokenise
from tamis.model.tree import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Condition,
    Context,
    Effect,
    Expression,
    Function,
    Has,
    Items,
    Like,
    Literal,
    Matches,
    Member,
    Negative,
    Not,
    Or,
    Parameter,
    StartsWith,
    Truth,
)

x, y, a, b, c, d = map(Attribute, "xyabcd")
ta, tb, tc, td = map(Truth, (a, b, c, d))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a or b and not c", Or((ta, And((tb, Not(tc)))))),
        ("A || b && !c", Or((Truth(Attribute("A")), And((tb, Not(tc)))))),
        ("a OR b Or c oR d", Or((ta, tb, tc, td))),
        ("(a and b) and (c aNd d)", And((ta, tb, tc, td))),
        ("not a < 1 and b", And((Not(Compare("<", a, Literal(1))), tb))),
        ("not not a", Not(Not(ta))),
        ("a = b", Compare("==", a, b)),
        ("a <> b", Compare("!=", a, b)),
        ("1 < x <= 20 != y", And((
            Compare("<", Literal(1), x), Compare("<=", x, Literal(20)), Compare("!=", Literal(20), y)))),
        ("a and 1 < x < y", And((ta, Compare("<", Literal(1), x), Compare("<", x, y)))),
        ("x between a + 1 and b and c", And((Between(x, Arithmetic("+", a, Literal(1)), b), tc))),
        ("x NOT BETWEEN 1 AND 2", Not(Between(x, Literal(1), Literal(2)))),
        ("x in ['bolt', 'nut',]", Member(x, Items((Literal("bolt"), Literal("nut"))))),
        ("x not in (1)", Not(Member(x, Items((Literal(1),))))),
        ("x in ctx.list", Member(x, Context("list"))),
        ("x in []", Member(x, Items(()))),
        ("x like 'a%'", Like(x, Literal("a%"))),
        ("x not like {p}", Not(Like(x, Parameter("p")))),
        ("x startswith ctx.prefix", StartsWith(x, Context("prefix"))),
        ("x not startswith 'a'", Not(StartsWith(x, Literal("a")))),
        (r"x matches r'\d+'", Matches(x, Literal(r"\d+"))),
        (r"x not matches '\\d+'", Not(Matches(x, Literal(r"\d+")))),
        ("has(x) and !HAS(ctx.y)", And((Has(x), Not(Has(Context("y")))))),
        ("a - b - c < a * b + c / d", Compare(
            "<", Arithmetic("-", Arithmetic("-", a, b), c),
            Arithmetic("+", Arithmetic("*", a, b), Arithmetic("/", c, d)))),
        ("a * (b + c) == -x", Compare("==", Arithmetic("*", a, Arithmetic("+", b, c)), Negative(x))),
        ("-a * b == - -1", Compare("==", Arithmetic("*", Negative(a), b), Negative(Literal(-1)))),
        ("x-1 < -2", Compare("<", Arithmetic("-", x, Literal(1)), Literal(-2))),
        ("abs(x - y) <= 150", Compare("<=", Function("abs", (Arithmetic("-", x, y),)), Literal(150))),
        ("distance(x, [1, 2]) < 5", Compare(
            "<", Function("distance", (x, Items((Literal(1), Literal(2))))), Literal(5))),
        ("ctx.busy and {flag} and TRUE", And((Truth(Context("busy")), Truth(Parameter("flag")), Truth(Literal(True))))),
        ("order.quantity == CTX.`odd name`", Compare("==", Attribute("order.quantity"), Context("odd name"))),
        ("`a``b and` == größe", Compare("==", Attribute("a`b and"), Attribute("größe"))),
        ("date == 1 and abs > has", And((
            Compare("==", Attribute("date"), Literal(1)), Compare(">", Attribute("abs"), Attribute("has"))))),
        ("x == 1 -- one\n # more\n or y", Or((Compare("==", x, Literal(1)), Truth(y)))),
        ("x == {a}", Compare("==", x, Parameter("a"))),
        ("{ odd name } == x", Compare("==", Parameter("odd name"), x)),
    ],
)  # fmt: skip
def test_trees(text: str, tree: Condition) -> None:
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1_000", 1000),
        ("1e6", 1e6),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.5E-3", 0.0015),
        ("-0.0", -0.0),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("-  7", -7),
        ("00", 0),
        ("1e-999", 0.0),
        ("number '-inf'", float("-inf")),
        ("NUMBER('nan')", float("nan")),
        ("tRuE", True),
        ("False", False),
        (r"'a\n\t\r\\\'\"é'", "a\n\t\r\\'\"é"),
        (r"'😀'", "😀"),
        ("'it''s \"\"'", 'it\'s ""'),
        ('"say ""hi"" \'\'"', "say \"hi\" ''"),
        ("r'a\\n''b'", "a\\n'b"),
        ('R"\\"', "\\"),
        ("''", ""),
        ("'line\nbreak'", "line\nbreak"),
        ("date '2024-01-31'", datetime(2024, 1, 31, tzinfo=UTC)),
        ('DATE("0001-01-01")', datetime(1, 1, 1, tzinfo=UTC)),
        ("timestamp '2024-01-31T12:00:00Z'", datetime(2024, 1, 31, 12, tzinfo=UTC)),
        ("timestamp '2024-01-31 12:00'", datetime(2024, 1, 31, 12, tzinfo=UTC)),
        ("timestamp('2024-01-31T12:00:00.1234569-01:30')", datetime(2024, 1, 31, 13, 30, 0, 123456, tzinfo=UTC)),
        ("timestamp '2024-01-31'", datetime(2024, 1, 31, tzinfo=UTC)),
    ],
)
def test_constants(text: str, value: object) -> None:
    assert parse(f"x == {text}") == Compare("==", x, Literal(value))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "suggestion"),
    [
        ("", "unexpected-end", 1, 1, None),
        ("  -- nothing", "unexpected-end", 1, 1, None),
        ("x ==", "unexpected-end", 1, 5, None),
        ("x == 1 and \n", "unexpected-end", 1, 11, None),
        ("quantitty betwen 1 and 2", "unexpected-token", 1, 11, "between"),
        ("x == 1\n  adn y == 2", "unexpected-token", 2, 3, "and"),
        ("(x == 1\r\n\tn y)", "unexpected-token", 2, 2, None),
        ("x === 1", "unexpected-token", 1, 3, "=="),
        ("x !== 1", "unexpected-token", 1, 3, "!="),
        ("a & b", "unexpected-token", 1, 3, "&&"),
        ("a | b", "unexpected-token", 1, 3, "||"),
        ("a => 1", "unexpected-token", 1, 3, ">="),
        ("a =< 1", "unexpected-token", 1, 3, "<="),
        ("x starts_with 'a'", "unexpected-token", 1, 3, "startswith"),
        ("x not lik 'a'", "unexpected-token", 1, 7, "like"),
        ("x == like", "unexpected-token", 1, 6, None),
        ("x == 1)", "unexpected-token", 1, 7, None),
        ("x == ctx", "unexpected-token", 1, 6, None),
        ("x == {", "unexpected-token", 1, 6, None),
        ("x ? 1", "unexpected-token", 1, 3, None),
        ("x == \x00", "unexpected-token", 1, 6, None),
        ("x in [1 2]", "unexpected-token", 1, 9, None),
        ("x between 1 or 2", "unexpected-token", 1, 13, None),
        ("distence(a, b) < 1", "unknown-function", 1, 1, "distance"),
        ("a and größe(b) < 1", "unknown-function", 1, 7, None),
        ("x is null", "no-null", 1, 3, "not has(x)"),
        ("a and ctx.x IS NOT NULL", "no-null", 1, 13, "has(ctx.x)"),
        ("x == null", "no-null", 1, 6, "not has(x)"),
        ("x != None", "no-null", 1, 6, "has(x)"),
        ("x == 'abc", "unterminated-string", 1, 6, None),
        ("x == 'abc''", "unterminated-string", 1, 6, None),
        ("x == 'abc\\'", "unterminated-string", 1, 6, None),
        ("x == r'abc", "unterminated-string", 1, 6, None),
        ("x 'abc", "unterminated-string", 1, 3, None),
        ("a < 1 and `abc == 1", "unterminated-string", 1, 11, None),
        ("ctx.`abc == 1", "unterminated-string", 1, 1, None),
        ("x == 12ab", "bad-number", 1, 6, None),
        ("x == 1.2.3", "bad-number", 1, 6, None),
        ("x == 1__0", "bad-number", 1, 6, None),
        ("x == 1e", "bad-number", 1, 6, None),
        ("x == 1²", "bad-number", 1, 6, None),
        ("x < number 'big'", "bad-number", 1, 12, None),
        ("x == 9223372036854775808", "number-range", 1, 6, None),
        ("x == -9223372036854775809", "number-range", 1, 6, None),
        ("x == " + "9" * 5000, "number-range", 1, 6, None),
        ("x == 1e999", "number-range", 1, 6, None),
        ("x == date '2024-02-30'", "bad-time", 1, 11, None),
        ("x == date '2024-02-03T10:00'", "bad-time", 1, 11, None),
        ("x == timestamp '0001-01-01T00:00+01:00'", "bad-time", 1, 16, None),
        ("x == timestamp '2024-01-01T24:00'", "bad-time", 1, 16, None),
        ("x == date(5)", "bad-time", 1, 11, None),
        (r"x matches '\d'", "bad-escape", 1, 12, None),
        (r"x == 'ab\u12'", "bad-escape", 1, 9, None),
        (r"x == '\ud800'", "bad-escape", 1, 7, None),
        ("x matches '('", "bad-regex", 1, 11, None),
        (r"x matches r'(a)\1'", "bad-regex", 1, 11, None),
        (r"x like r'a\'", "bad-pattern", 1, 8, None),
        ("x like y", "bad-pattern", 1, 8, None),
        ("a and (b == 1 and\n(c == 2", "unclosed", 2, 1, None),
        ("x in [1, 2", "unclosed", 1, 6, None),
        ("x in (1,", "unclosed", 1, 6, None),
        ("abs(x", "unclosed", 1, 4, None),
        ("x + 1", "not-a-condition", 1, 1, None),
        ("a and 5", "not-a-condition", 1, 7, None),
        ("not 'x'", "not-a-condition", 1, 5, None),
        ("(a < 1) + 2 < 3", "not-an-expression", 1, 1, None),
        ("x == (a < 1)", "not-an-expression", 1, 6, None),
        ("a + not b", "not-an-expression", 1, 5, None),
        ("x in 5", "bad-list", 1, 6, None),
        ("x == [1]", "misplaced-list", 1, 6, None),
        ("x in [[1]]", "misplaced-list", 1, 7, None),
        ("has(1)", "bad-argument", 1, 5, None),
        ("abs(x, y) < 1", "bad-argument", 1, 1, None),
        ("distance(x, 5) < 1", "bad-argument", 1, 13, None),
        ("`` == 1", "empty-name", 1, 1, None),
        ("x == {}", "bad-parameter", 1, 6, None),
        ("x == {#0}", "bad-parameter", 1, 6, None),
        ("x == '\ud800'", "bad-character", 1, 7, None),
        ("x == '" + "a" * 65_536 + "'", "too-long", 1, 1, None),
    ],
)
def test_errors(text: str, code: str, line: int, column: int, suggestion: str | None) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(text)
    error = caught.value
    assert (error.code, error.line, error.column, error.suggestion) == (code, line, column, suggestion)
    assert error.message and code in str(error)


def test_an_error_shows_the_place_and_what_was_expected() -> None:
    with pytest.raises(ProfileError) as caught:
        parse("type == 'order'\n  and quantity betwen 1 and 5")
    assert str(caught.value) == (
        "unexpected 'betwen' [unexpected-token]\n"
        "  line 2, column 16:\n"
        "      and quantity betwen 1 and 5\n"
        "                   ^\n"
        "  expected: an operator, 'and', 'or', the end of the profile\n"
        "  did you mean 'between'?"
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("(" * 30_000, "too-deep"),
        ("not " * 15_000, "too-deep"),
        ("!" * 60_000, "too-deep"),
        ("x == " + "- " * 30_000, "too-deep"),
        ("x in " + "[" * 60_000, "misplaced-list"),
        ("x == " + "abs(" * 15_000, "too-deep"),
        ("x == " + "distance([" * 6_000, "too-deep"),
        ("x < " + "+".join("a" * 30_000), "too-deep"),
        ("x in [" + "1," * 30_000, "too-long"),
        ("||".join("a" * 20_000), "too-long"),
        ("<".join("a" * 30_000), "too-long"),
        ("x in [1" + ",1" * 9_000 + "] or " + "x in [1" + ",1" * 9_000, "unclosed"),
        (" or ".join(f"x matches 'a{i}'" for i in range(50)), "too-long"),
        ("'\\" * 30_000, "unterminated-string"),
        ("x == '" + "''" * 30_000, "unterminated-string"),
        ("`" * 60_001, "unterminated-string"),
        ("{" * 60_000, "unexpected-token"),
        ("x == " + "9" * 60_000, "number-range"),
        ("x == " + "1_" * 30_000, "bad-number"),
        ("x == 0." + "1" * 60_000 + "e1x", "bad-number"),
        ("-" * 60_000, "unexpected-end"),
        ("x" * 60_000 + "(", "unknown-function"),
        ("x ==" + "\n" * 60_000, "unexpected-end"),
        ("x.é" * 20_000 + " ?", "unexpected-token"),
    ],
)
def test_hostile_texts_fail_soon(text: str, code: str) -> None:
    best = 1.0
    for _ in range(3):
        start = time.perf_counter()
        with pytest.raises(ProfileError) as caught:
            parse(text)
        best = min(best, time.perf_counter() - start)
    assert caught.value.code == code
    assert best < 0.2  # 0.05 on a quiet machine
    assert len(str(caught.value)) < 1_000


def test_the_limits_themselves_are_allowed() -> None:
    parse("(" * 64 + "a" + ")" * 64)
    parse("x < " + "+".join("a" * 101))
    tree = parse("x in [" + ",".join(["1"] * 10_000) + "]")
    assert isinstance(tree, Member) and isinstance(tree.collection, Items) and len(tree.collection.items) == 10_000
    parse("||".join("a" * 4096))
    with pytest.raises(ProfileError, match="nested more than 3 deep"):
        parse("((((a))))", max_depth=3)
    with pytest.raises(ProfileError, match="at most 2 items"):
        parse("x in [1, 2, 3]", max_items=2)
    with pytest.raises(ProfileError, match="at most 5 are allowed"):
        parse("x == 1", max_length=5)
    with pytest.raises(ProfileError, match="too-deep"):
        parse("not " * 5_000 + "a", max_depth=10_000)


def test_only_texts_are_parsed() -> None:
    with pytest.raises(UsageError, match="a str, not int"):
        parse(5)  # type: ignore[arg-type]


PIECES = """
a x ctx.y `q` 1 -2 .5 1e3 'it' "s" r'\\d' true {p} ( ) [ ] , ; and or not ! && || == = != <> < <= > >= + -
* / between in like startswith matches has( abs( distance( date timestamp number '2024-01-31' 'nan' null is -- # . ' " `
{ } \\ é ² += ===
"""
pieces = st.sampled_from([*PIECES.split(), "ctx.`q r`", "\n", "\x00", "\ud800"])
soups = st.lists(pieces, max_size=12).map(" ".join) | st.lists(pieces, max_size=8).map("".join) | st.text(max_size=20)


@given(soups)
@example("\ud800")
@example("x == 1\x85and ?")
def test_any_text_gives_a_tree_or_a_profile_error(text: str) -> None:
    for read in (parse, parse_effects):
        try:
            read(text)
        except ProfileError as error:
            lines = error.text.splitlines() or [""]
            assert 1 <= error.line <= len(lines) + 1
            assert error.column >= 1
            assert str(error) and error.to_json()


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("ctx.stock -= quantity", [("stock", Arithmetic("-", Context("stock"), Attribute("quantity")))]),
        ("n = ctx.n + 1; `odd name` *= a + b;", [
            ("n", Arithmetic("+", Context("n"), Literal(1))),
            ("odd name", Arithmetic("*", Context("odd name"), Arithmetic("+", a, b)))]),
        ("ctx.x /= -2;ctx.`y z` = 'it'", [
            ("x", Arithmetic("/", Context("x"), Literal(-2))), ("y z", Literal("it"))]),
        ("last=-1;n+=-1 -- comment", [("last", Literal(-1)), ("n", Arithmetic("+", Context("n"), Literal(-1)))]),
        ("busy = true", [("busy", Literal(True))]),
    ],
)  # fmt: skip
def test_effects(text: str, effects: list[tuple[str, Expression]]) -> None:
    assert parse_effects(text) == tuple(Effect(*one) for one in effects)


@pytest.mark.parametrize(
    ("text", "code", "column", "suggestion"),
    [
        ("", "unexpected-end", 1, None),
        ("ctx.x == 1", "unexpected-token", 7, "="),
        ("ctx.x", "unexpected-end", 6, None),
        ("5 = x", "unexpected-token", 1, None),
        ("and = 1", "unexpected-token", 1, None),
        ("a = 1 b = 2", "unexpected-token", 7, None),
        ("a = 1;; b = 2", "unexpected-token", 7, None),
        ("a = b < 1", "unexpected-token", 7, None),
        ("a = has(b)", "not-an-expression", 5, None),
        ("a = [1]", "misplaced-list", 5, None),
    ],
)
def test_effect_errors(text: str, code: str, column: int, suggestion: str | None) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_effects(text)
    assert (caught.value.code, caught.value.column, caught.value.suggestion) == (code, column, suggestion)


def test_locate_finds_nodes_by_value() -> None:
    text = "a < 1 and\n  (ctx.stock - b > 5 or true)\n  and distance(x, [3, -4]) < 9"
    tree = parse(text)
    assert isinstance(tree, And)
    assert locate(text, tree) == (1, 1)
    assert locate(text, tree.items[1]) == (2, 4)
    assert locate(text, b) == (2, 16)
    assert locate(text, Literal(True)) == (2, 25)
    assert locate(text, Items((Literal(3), Literal(-4)))) == (3, 20)
    assert locate(text, Literal(-4)) == (3, 23)
    assert locate(text, Attribute("unknown")) == (1, 1)
    assert locate("n = 1; m = ctx.n + a", Context("n")) == (1, 12)
    assert locate("?", a) == (1, 1)


def test_tokens_for_editors() -> None:
    tokens = list(tokenise("x >= -.5 AND ctx.`a b` in {p} -- done\n r'\\d' ?"))
    assert [(token.kind, token.text) for token in tokens] == [
        ("name", "x"),
        ("operator", ">="),
        ("operator", "-"),
        ("number", ".5"),
        ("keyword", "AND"),
        ("context", "ctx.`a b`"),
        ("keyword", "in"),
        ("parameter", "{p}"),
        ("text", "r'\\d'"),
        ("other", "?"),
    ]
    assert tokens[-1].start == 45


def test_regexes_are_compiled_by_re2() -> None:
    assert language.compile_regex(r"^\d+$").search("123")
    assert language.regex_defect("(?=a)") is not None
    assert language.regex_defect("a" * 1_001) == "the pattern is longer than 1000 characters"
