"""The schema: one kind per name, fixed by the first evidence.

Guarantees that a name (``x`` of the message, ``ctx.x`` of the context) never changes its kind once it is fixed, that
a refused profile or message leaves nothing behind, and that an accepted profile can be evaluated without a kind error.
Refuses to know matching, contexts' values and the profile's text.

Kinds not yet known are variables of a union-find: ``a == ctx.b`` makes one variable of both, so that fixing one fixes
the other. A variable carries the set of kinds it may still become (``a < ctx.b`` excludes booleans and lists).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tamis.errors import EventError, UsageError
from tamis.model import tree as t
from tamis.model.categories import Graphs, graph_name, unknown_category
from tamis.model.inference import (
    BIT,
    EQUALITY,
    Attempt,
    Clash,
    Variable,
    context_name,
    find,
    kind_of_variable,
    message_name,
    phrase,
)
from tamis.model.values import (
    BOOLEAN,
    CATEGORIES,
    INT64_MAX,
    INT64_MIN,
    LIST,
    LIST_OF,
    NUMBER,
    SCALAR_KIND,
    TEXT,
    TIME,
    Kind,
    kind_of,
    shown,
)

__all__ = ["Schema", "context_name", "message_name"]
MANY = 1_000_000  # texts of a name that are known to be categories at most


class Schema:
    """The kinds of all names.

    >>> s = Schema({"price": "number"})
    >>> s.admit(t.Compare("<", t.Attribute("price"), t.Context("limit")), profile="p1")
    >>> str(s.kind("ctx.limit")), s.evidence("ctx.limit")
    ('number', "since profile 'p1'")

    ``version`` grows with every change, so that whatever was derived from the schema can be kept until then.
    """

    def __init__(self, kinds: Mapping[str, str | Kind] | None = None, graphs: Graphs | None = None) -> None:
        self.version = 0
        self.graphs: Graphs = graphs or {}
        # The graphs whose categories the values of a name are.
        self._bound: dict[str, tuple[str, ...]] = {}
        # Texts that are categories of a name, with the versions of its graphs at which they were.
        self._known: dict[str, tuple[tuple[tuple[str, int], ...], set[str]]] = {}
        self._variables: dict[str, Variable] = {}
        # Settled kinds by bare name: all that the common path of `admit` reads. Filled lazily, never wrong.
        self._message: dict[str, Kind] = {}
        self._context: dict[str, Kind] = {}
        if kinds:
            self.declare(kinds)
        for graph in self.graphs:
            attempt = self._attempt(f"it has the name of graph {graph!r}")
            name = message_name(graph)
            try:
                attempt.categorise(attempt.name(name))
            except Clash:
                attempt.undo()
                raise UsageError(
                    f"schema: {graph} has a content graph, so it is {CATEGORIES.phrase}, not {self.kind(name)}"
                ) from None
            attempt.bind(name, graph)
            self._commit(attempt)

    # -- reading -----------------------------------------------------------------------------------------------

    def kind(self, name: str) -> Kind | None:
        """The kind of ``x`` or ``ctx.x``; ``None`` when the name is unknown or its kind still open. O(1)."""
        settled = self._context.get(name[4:]) if name.startswith("ctx.") else self._message.get(name)
        if settled is not None:
            return settled
        variable = self._variables.get(name)
        if variable is None:
            return None
        kind = kind_of_variable(variable)
        if kind is not None and kind is not LIST:
            self._remember(name, kind)
        return kind

    def knows(self, name: str) -> bool:
        """Whether a profile, a track, a declaration or a context value has named it."""
        return name in self._variables

    def names(self) -> list[str]:
        """All known names, sorted."""
        return sorted(self._variables)

    def message_attributes(self) -> list[str]:
        """The known attributes of messages under their own names, sorted."""
        return sorted(_bare(name) for name in self._variables if not name.startswith("ctx."))

    def evidence(self, name: str) -> str | None:
        """What fixed the kind: ``since profile 'w-A'``; ``None`` while nothing did."""
        variable = self._variables.get(name)
        return (find(variable).evidence or None) if variable is not None else None

    def expect(self, name: str, value: object) -> str | None:
        """Why a normalised value cannot be the value of ``name``; ``None`` when it can. Changes nothing."""
        if value is None:
            return None
        kind, variable = kind_of(value), self._variables.get(name)
        if variable is None or kind is None:
            return None
        root = find(variable)
        fits = bool(root.mask & BIT[kind.name])
        if fits and kind.element is not None and root.element is not None:
            fits = bool(find(root.element).mask & BIT[kind.element.name])
        if fits:
            return self._unknown(name, value)
        because = f" ({root.evidence})" if root.evidence else ""
        got = kind.phrase if kind.name == "list" else str(kind)
        return f"{_bare(name)}: expected {phrase(variable)}{because}, got {got} {shown(value)}"

    def bound(self, name: str) -> tuple[str, ...]:
        """The graphs whose categories the values of a name are."""
        return self._bound.get(name, ())

    def unknown(self, name: str, category: str) -> str | None:
        """Why a text cannot be a category of a name; ``None`` when one of its graphs knows it, or it has none."""
        bound = self._bound.get(name)
        if not bound:
            return None
        reason = None
        for graph in bound:
            reason = unknown_category(self.graphs[graph], category)
            if reason is None:
                return None
        return f"{_bare(name)}: {reason}"

    def versions(self, name: str) -> tuple[tuple[str, int], ...]:
        """The graphs whose categories the values of a name are, and their versions, on which it depends what is one."""
        return tuple((graph, self.graphs[graph].version) for graph in self.bound(name))

    def all_unknown(self, name: str, categories: Sequence[str]) -> dict[int, str]:
        """Which of some texts cannot be categories of a name, and why."""
        versions = self.versions(name)
        kept = self._known.get(name)
        if kept is None or kept[0] != versions or len(kept[1]) > MANY:
            kept = self._known[name] = (versions, set())
        wrong = {}
        for i, category in enumerate(categories):
            if category not in kept[1]:
                reason = self.unknown(name, category)
                if reason is None:
                    kept[1].add(category)
                else:
                    wrong[i] = reason
        return wrong

    def _unknown(self, name: str, value: object) -> str | None:
        if name not in self._bound:
            return None
        for category in value if isinstance(value, tuple) else (value,):
            reason = self.unknown(name, category) if isinstance(category, str) else None
            if reason is not None:
                return reason
        return None

    # -- changing ----------------------------------------------------------------------------------------------

    def _attempt(
        self, evidence: str, parameters: Mapping[str, Kind] | None = None, profile: str | int | None = None
    ) -> Attempt:
        return Attempt(self._variables, evidence, parameters, profile, self.graphs, self._bound)

    def declare(self, kinds: Mapping[str, str | Kind]) -> None:
        """Fixes kinds by the user's word: ``{"price": "number", "ctx.portfolio": "list of text"}``. All or nothing."""
        if not isinstance(kinds, Mapping):
            raise UsageError(f"schema: expected a mapping of names to kinds, got {type(kinds).__name__}")
        parsed = {_checked(name): Kind.parse(kind) for name, kind in kinds.items()}
        attempt = self._attempt("declared in schema")
        for name, kind in parsed.items():
            try:
                attempt.narrow(attempt.name(name), kind)
            except Clash:
                attempt.undo()
                raise UsageError(
                    f"schema: {name} cannot be declared as {kind}: it is {self.kind(name)} ({self.evidence(name)})"
                ) from None
        self._commit(attempt)

    def fix(self, name: str, kind: Kind, evidence: str) -> None:
        """Fixes the kind of one name, known or not; :class:`EventError` when it already has another one."""
        if self.kind(name) is kind:
            return
        attempt = self._attempt(evidence)
        try:
            attempt.narrow(attempt.name(name), kind)
        except Clash:
            attempt.undo()
            because = self.evidence(name)
            wanted = phrase(self._variables[name])
            reason = f"{_bare(name)}: expected {wanted}{f' ({because})' if because else ''}, got {kind.phrase}"
            raise EventError(reason) from None
        self._commit(attempt)

    def observe(self, values: Mapping[str, object], evidence: str) -> str | None:
        """Checks normalised values against the kinds of their names and fixes the kinds still open.

        All or nothing: the first value that does not fit, by name, is the reason returned, and then nothing is
        fixed. Names unknown so far become known.
        """
        open_names = []
        bound = self._bound
        for name, value in values.items():
            if value is not None and (name in bound or self.kind(name) is not kind_of(value)):
                open_names.append(name)
        if not open_names:
            return None
        attempt = self._attempt(evidence)
        for name in sorted(open_names):
            kind = kind_of(values[name])
            assert kind is not None
            reason = self.expect(name, values[name]) if name in bound else None
            if reason is not None:
                attempt.undo()
                return reason
            try:
                attempt.narrow(attempt.name(name), kind)
            except Clash:
                reason = self.expect(name, values[name])
                attempt.undo()
                return reason or f"{_bare(name)}: {kind.phrase} does not fit the other values"
        self._commit(attempt)
        return None

    def admit(
        self,
        condition: t.Condition | None,
        effects: Sequence[t.Effect] = (),
        profile: str | int | None = None,
        parameters: Mapping[str, Kind] | None = None,
        printed: Sequence[str] = (),
        evidence: str | None = None,
    ) -> None:
        """Takes a profile in: infers the kinds it needs, or raises :class:`ProfileError` and leaves nothing behind.

        ``parameters`` gives kinds to ``{holes}``; others are open. ``printed`` are message attributes that become part
        of a context's name, hence numbers or text. ``evidence`` replaces ``since profile ...`` in later errors. The
        error's ``node`` is the part of the tree at fault.

        Time is linear in the tree; a profile over settled names only is checked in about a microsecond a predicate.
        """
        if (
            (condition is None or self._fits(condition, parameters))
            and not printed
            and (not effects or all(self._assigns(effect, parameters) for effect in effects))
        ):
            return
        if evidence is None:
            evidence = "since an earlier profile" if profile is None else f"since profile {profile!r}"
        attempt = self._attempt(evidence, parameters, profile)
        try:
            if condition is not None:
                attempt.condition(condition)
            for effect in effects:
                attempt.effect(effect)
            for name in printed:
                attempt.printed(name)
            attempt.settle()
        except BaseException:
            attempt.undo()
            raise
        self._commit(attempt)

    def fits(self, condition: t.Condition, parameters: Mapping[str, Kind]) -> bool:
        """Whether a condition is over settled names only and right: then it is admitted, now and ever after."""
        return self._fits(condition, parameters)

    def infer(self, expression: t.Expression, parameters: Mapping[str, Kind] | None = None) -> Kind | None:
        """The kind of an expression of an admitted profile; ``None`` while it is open. Changes nothing."""
        kind = self._expression(expression, parameters)
        if kind is not None:
            return kind
        attempt = self._attempt("", parameters)
        try:
            variable = attempt.expression(expression)
            attempt.settle()
            return kind_of_variable(variable)
        finally:
            attempt.undo()

    def _commit(self, attempt: Attempt) -> None:
        if attempt.changed:
            self.version += 1

    # -- saving ------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The whole schema as plain values, for JSON."""
        numbers: dict[int, int] = {}
        rows: list[dict[str, Any]] = []

        def number(variable: Variable) -> int:
            root = find(variable)
            if id(root) not in numbers:
                numbers[id(root)] = len(rows)
                row: dict[str, Any] = {"mask": root.mask, "evidence": root.evidence, "element": None}
                if root.either:
                    row["either"] = True
                rows.append(row)
                if root.element is not None:
                    row["element"] = number(root.element)
            return numbers[id(root)]

        names = {name: number(variable) for name, variable in sorted(self._variables.items())}
        saved = {"version": self.version, "names": names, "variables": rows}
        return {**saved, "categories": dict(self._bound)} if self._bound else saved

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], graphs: Graphs | None = None) -> Schema:
        """The schema that :meth:`to_dict` described, over the same graphs."""
        schema = cls()
        variables = [Variable(row["mask"], row["evidence"]) for row in saved["variables"]]
        for row, variable in zip(saved["variables"], variables, strict=True):
            variable.either = row.get("either", False)
            if row["element"] is not None:
                variable.element = variables[row["element"]]
        schema._variables = {name: variables[number] for name, number in saved["names"].items()}
        schema.version = saved["version"]
        schema.graphs = graphs or {}
        schema._bound = {name: tuple(known) for name, known in saved.get("categories", {}).items()}
        return schema

    def __repr__(self) -> str:
        return f"Schema({ {name: str(self.kind(name) or '?') for name in self.names()} })"

    # -- the common path: every name settled, nothing to infer -------------------------------------------------

    def _remember(self, name: str, kind: Kind) -> None:
        if name.startswith("ctx."):
            self._context[name[4:]] = kind
        else:
            self._message[_bare(name)] = kind

    def _expression(self, node: t.Expression, parameters: Mapping[str, Kind] | None) -> Kind | None:
        """The kind of an expression of settled names; ``None`` when anything is open or wrong."""
        cls = type(node)
        if cls is t.Attribute:
            name = node.name  # type: ignore[union-attr]
            return self._message.get(name) or self.kind(message_name(name))
        if cls is t.Literal:
            value = node.value  # type: ignore[union-attr]
            if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
                return None
            return SCALAR_KIND.get(type(value))
        if cls is t.Context:
            name = node.name  # type: ignore[union-attr]
            return self._context.get(name) or self.kind(context_name(name))
        if isinstance(node, t.Arithmetic):
            left, right = self._expression(node.left, parameters), self._expression(node.right, parameters)
            if left is NUMBER and right is NUMBER:
                return NUMBER
            if node.op == "+" and ((left is TIME and right is NUMBER) or (left is NUMBER and right is TIME)):
                return TIME
            if node.op == "-" and left is TIME:
                return NUMBER if right is TIME else TIME if right is NUMBER else None
            return None
        if isinstance(node, t.Parameter):
            return parameters.get(node.name) if parameters else None
        if isinstance(node, t.Negative):
            return NUMBER if self._expression(node.operand, parameters) is NUMBER else None
        if isinstance(node, t.Function):
            wanted = NUMBER if node.name == "abs" and len(node.arguments) == 1 else None
            if node.name == "distance" and len(node.arguments) == 2:
                wanted = LIST_OF[NUMBER]
            kinds = [self._expression(argument, parameters) for argument in node.arguments]
            return NUMBER if wanted is not None and all(kind is wanted for kind in kinds) else None
        if isinstance(node, t.Items):
            kinds = [self._expression(item, parameters) for item in node.items]
            first = kinds[0] if kinds else None
            same = first is not None and first.name != "list" and all(kind is first for kind in kinds)
            return LIST_OF[first] if same else None
        return None

    def _assigns(self, effect: t.Effect, parameters: Mapping[str, Kind] | None) -> bool:
        kind = self._expression(effect.value, parameters)
        target = self.kind(context_name(effect.target))
        if target is CATEGORIES and kind is TEXT:
            return True
        return kind is not None and kind is not LIST and target is kind

    def _fits(self, node: t.Condition, parameters: Mapping[str, Kind] | None) -> bool:
        cls = type(node)
        if cls is t.Compare:
            left = self._expression(node.left, parameters)  # type: ignore[union-attr]
            if left is None or left is not self._expression(node.right, parameters):  # type: ignore[union-attr]
                return False
            if left is NUMBER or left is TEXT or left is TIME:
                return True
            return left is BOOLEAN and node.op in EQUALITY  # type: ignore[union-attr]
        if cls is t.And or cls is t.Or:
            for item in node.items:  # type: ignore[union-attr]  # noqa: SIM110 (a generator doubles the time)
                if not self._fits(item, parameters):
                    return False
            return True
        if isinstance(node, t.Between):
            kind = self._expression(node.value, parameters)
            return (
                (kind is NUMBER or kind is TEXT or kind is TIME)
                and self._expression(node.low, parameters) is kind
                and self._expression(node.high, parameters) is kind
            )
        if isinstance(node, t.Not):
            return self._fits(node.item, parameters)
        if isinstance(node, t.Member):
            kind = self._expression(node.value, parameters)
            if kind is None or kind.name == "list":
                return False
            return self._expression(node.collection, parameters) is LIST_OF[kind]
        if isinstance(node, t.Like | t.Matches):
            both = (node.value, node.pattern)
            return all(self._expression(side, parameters) is TEXT for side in both)
        if isinstance(node, t.StartsWith):
            return all(self._expression(side, parameters) is TEXT for side in (node.value, node.prefix))
        if isinstance(node, t.Within | t.Covers):
            return self._fits_categories(node, parameters)
        if isinstance(node, t.Truth):
            return self._expression(node.operand, parameters) is BOOLEAN
        if isinstance(node, t.Has):
            return self._expression(node.operand, parameters) is not None
        return False

    def _fits_categories(self, node: t.Within | t.Covers, parameters: Mapping[str, Kind] | None) -> bool:
        graph = graph_name(node, self.graphs)
        if graph is None:
            return False
        for side in (node.value, node.category):
            for part in side.items if isinstance(side, t.Items) else (side,):
                kind = self._expression(part, parameters)
                if kind is not TEXT and (side is not part or kind not in (CATEGORIES, LIST_OF[TEXT])):
                    return False
                if isinstance(part, t.Literal) and str(part.value) not in self.graphs[graph]:
                    return False
                if isinstance(part, t.Attribute) and graph not in self.bound(message_name(part.name)):
                    return False
                if isinstance(part, t.Context) and graph not in self.bound(context_name(part.name)):
                    return False
        return True


def _bare(name: str) -> str:
    """The attribute's own name of a message name; a context name stays as it is."""
    return name[1:-1] if name.startswith("`") else name


def _checked(name: object) -> str:
    if not isinstance(name, str) or name in ("", "ctx."):
        raise UsageError(f"schema: expected a name such as 'price' or 'ctx.stock', got {name!r}")
    return name
