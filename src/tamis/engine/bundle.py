"""Saving and loading: a folder with one ``.npy`` per array and a ``filter.json`` for the rest.

The arrays are opened memory-mapped and copy-on-write: loading costs no copy, several processes share the pages that
they only read, and none sees what another changes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.graph import ContentGraph
from tamis.model.packed import pack, unpack
from tamis.model.schema import Schema
from tamis.model.template import Template
from tamis.model.values import Kind

from .compile import Compiler, Names, Shape
from .contexts import ContextStore
from .profiles import ProfileStore
from .subscriptions import Subscriptions
from .values import ValueStore

if TYPE_CHECKING:
    from .filter import Filter

FORMAT = "tamis-filter-10"


def save(f: Filter, path: Path) -> None:
    """Write a filter; an existing folder of a saved filter is replaced when everything is written."""
    if path.exists() and not (path / "filter.json").exists():
        raise UsageError(f"{path}: exists and is not a saved filter; choose another path")
    fresh = path.with_name(path.name + ".new")
    if fresh.exists():
        shutil.rmtree(fresh)
    fresh.mkdir(parents=True)
    rooms: dict[str, dict[str, NDArray[Any]]] = {
        "contexts": f._contexts.arrays(),
        "profiles": f._profiles.arrays(),
        "templates": f._compiler.arrays(),
        "values": f._values.arrays(),
    }
    for shard, index in enumerate(f._indexes):
        rooms[f"index{shard}"] = index.arrays()
        rooms[f"catalogue{shard}"] = f._catalogues[shard].arrays()
    for number, graph in enumerate(f._schema.graphs.values()):
        rooms[f"graph{number}"] = graph.arrays()  # type: ignore[attr-defined]
    for room, arrays in rooms.items():
        for name, array in arrays.items():
            np.save(fresh / f"{room}.{name}.npy", array)
    (fresh / "filter.json").write_text(json.dumps(_state(f)), encoding="utf-8")
    if path.exists():
        shutil.rmtree(path)
    fresh.rename(path)


def load(cls: type[Filter], path: Path) -> Filter:
    """The filter in a folder."""
    try:
        state = json.loads((path / "filter.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a saved filter: {error}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UsageError(f"{path}: not a saved filter, or saved by another version (expected {FORMAT})")
    graphs = [ContentGraph.from_arrays(name, _room(path, f"graph{i}")) for i, name in enumerate(state["graphs"])]
    f = cls(**state["options"], graphs=graphs)
    f._schema = Schema.from_dict(state["schema"], f._schema.graphs)
    f._values = ValueStore.adopt(_room(path, "values"), state["patterns"])
    compiler = f._compiler = Compiler(f._schema, f._values)
    compiler.gated = state["gated"]
    compiler.adopt(_room(path, "templates"))
    compiler.attributes, compiler.context_attributes = Names(state["attributes"]), Names(state["context_attributes"])
    for attribute in ("message_patterns", "context_patterns"):
        setattr(compiler, attribute, {int(column): set(asked) for column, asked in state[attribute].items()})
    compiler.open_patterns = [tuple(asked) for asked in state["open_patterns"]]
    compiler.has_wide = state["has_wide"]
    compiler.reopen(*([(at, unpack(side)) for at, side in names] for names in state["open"]))
    f._categories = compiler.categories = f._new_categories()
    f._contexts = ContextStore.adopt(_room(path, "contexts"))
    f._profiles = ProfileStore.adopt(_room(path, "profiles"))
    f._subscriptions = Subscriptions(f._schema, compiler, f._contexts, f._profiles)
    for saved, shared in zip(state["shapes"], state["shared_effects"], strict=True):
        f._subscriptions.adopt(_shape(saved), shared)
    if f._auto is not None:
        f._auto.adopt(state["choice"])
    for shard, index in enumerate(f._indexes):
        index.adopt(_room(path, f"index{shard}"))
        f._catalogues[shard].adopt(_room(path, f"catalogue{shard}"))
    f._tracks = [_track(saved) for saved in state["tracks"]]
    f._counts.update(state["counts"])
    f._history.start(f._counts["messages"])
    f._fit()
    f._prepare_patterns()
    return f


def _room(path: Path, room: str) -> dict[str, NDArray[Any]]:
    found = {}
    for file in path.glob(f"{room}.*.npy"):
        # Copy-on-write, as a plain array: kernels know one sort of array only. Empty files cannot be mapped.
        mapped = np.load(file, mmap_mode="c") if file.stat().st_size > 4096 else np.load(file)
        found[file.name.split(".")[1]] = np.asarray(mapped)
    return found


def _state(f: Filter) -> dict[str, Any]:
    compiler = f._compiler
    return {
        "format": FORMAT,
        "options": {
            "strategy": f.strategy,
            "index": f.index,
            "policy": f.policy,
            "threads": f.threads,
            "indexed": f.indexed,
            "scope": f.scope,
            "batching": None if f.batching is None else f.batching.to_dict(),
            "history": f._history.room,
        },
        "choice": None if f._auto is None else f._auto.state(),
        "graphs": list(f._schema.graphs),
        "gated": compiler.gated,
        "schema": f._schema.to_dict(),
        "patterns": f._values.patterns(),
        "attributes": list(compiler.attributes.column),
        "context_attributes": list(compiler.context_attributes.column),
        "message_patterns": {column: sorted(asked) for column, asked in compiler.message_patterns.items()},
        "context_patterns": {column: sorted(asked) for column, asked in compiler.context_patterns.items()},
        "open_patterns": compiler.open_patterns,
        "has_wide": compiler.has_wide,
        "open": [[(at, pack(side)) for at, side in names] for names in compiler.open_names()],
        "shapes": [_saved_shape(shape) for shape in f._subscriptions.shapes],
        "shared_effects": f._subscriptions.shared_effects,
        "tracks": [
            {
                "context": track.template.text,
                "when": pack(track.condition),
                "set": pack(track.effects),
                "clauses": track.clauses,
                "first_effect": track.first_effect,
            }
            for track in f._tracks
        ],
        "counts": f._counts,
    }


def _saved_shape(shape: Shape) -> dict[str, Any]:
    return {
        "condition": pack(shape.condition),
        "effects": pack(shape.effects),
        "parameters": shape.parameters,
        "kinds": {name: str(kind) for name, kind in shape.kinds.items()},
        "wide": sorted(shape.wide),
        "templates": shape.templates,
        "computed": [pack(expression) for expression in shape.computed],
        "effect_codes": shape.effect_codes,
        "own_effects": shape.own_effects,
        "stores_codes": shape.stores_codes,
    }


def _shape(saved: dict[str, Any]) -> Shape:
    return Shape(
        source=unpack(saved["condition"]),
        effects=unpack(saved["effects"]),
        parameters=tuple(saved["parameters"]),
        kinds={name: Kind.parse(kind) for name, kind in saved["kinds"].items()},
        wide=frozenset(saved["wide"]),
        templates=tuple(saved["templates"]),
        computed=tuple(unpack(expression) for expression in saved["computed"]),
        effect_codes=tuple(tuple(code) for code in saved["effect_codes"]),
        own_effects=saved["own_effects"],
        stores_codes=saved["stores_codes"],
    )


def _track(saved: dict[str, Any]) -> Any:
    from .filter import Track

    return Track(
        Template.parse(saved["context"]),
        unpack(saved["when"]),
        unpack(saved["set"]),
        [tuple(clause) for clause in saved["clauses"]],
        saved["first_effect"],
    )
