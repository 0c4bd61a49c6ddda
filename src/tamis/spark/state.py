"""What a shard keeps in Spark's state store, and the warm copy of it in the Python worker.

Durable are a snapshot (a shard's files in a few large chunks), the deltas since, and ``meta``, which names the versions
they lead to. A version is a random token, new for every attempt of every micro-batch, so that a copy that was changed
by an attempt which Spark threw away is never taken for the truth. The worker keeps the shards it has seen: one whose
token is the last is used as it is, one that is behind catches up from the deltas, any other is built from the snapshot.
Refuses to know what is in the events.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from tamis.engine.shard import Shard
from tamis.errors import InvariantError, UsageError

from .route import from_bytes, to_bytes

FORMAT: Final = 1
CHUNK: Final = 16 * 2**20
KEPT: Final = 32
"""Deltas that stay after a snapshot, for workers that are a little behind it."""
WARM: Final = 32
"""Shards that one worker keeps."""

_warm: OrderedDict[str, tuple[str, Shard]] = OrderedDict()


@dataclass
class Meta:
    """The small part of the state, one JSON text."""

    shards: int
    lineage: str = ""
    base: str = ""
    snapshot_bytes: int = 0
    chunks: int = 0
    chain: list[tuple[int, str, int]] = field(default_factory=list)
    """Deltas in order: number, the token of the version they lead to, size."""
    high: dict[str, int] = field(default_factory=dict)
    """How far every source is in the order; of a partitioned one, ``source partition``, every partition."""
    seen: dict[str, int] = field(default_factory=dict)
    """When it was heard of last, in milliseconds."""
    done: int | None = None
    late: int = 0
    held: int = 0
    waiting: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """The events that wait, of all shards, by source: last key and number of every bin. The same in every shard."""
    floor: int | None = None
    """Up to here nothing waits any more, because too many did."""
    forced: int = 0
    holding: list[str] = field(default_factory=list)
    timer: int | None = None
    control: dict[str, Any] | None = None
    """What the quality of service remembers: learned costs, and the seconds of the last replay."""
    shed: dict[str, int] = field(default_factory=dict)
    """Messages and updates that were shed since the checkpoint was made."""
    format: int = FORMAT

    @property
    def token(self) -> str:
        """The last version."""
        return self.chain[-1][1] if self.chain else self.base

    def since(self, token: str) -> list[tuple[int, str, int]] | None:
        """The deltas from a version to the last; ``None`` when they are not kept."""
        tokens = [entry[1] for entry in self.chain]
        if token in tokens:
            return self.chain[tokens.index(token) + 1 :]
        return self.chain if token == self.base and self.base not in tokens else None


class Store:
    """The state of one shard, through the handle that Spark gives: one map of named values.

    One state variable, because each costs a round trip and a column family in every task.
    """

    def __init__(self, handle: Any) -> None:
        self._values = handle.getMapState("shard", "name string", "data binary")

    def _get(self, name: str) -> bytes | None:
        found = self._values.getValue((name,))
        return None if found is None else bytes(found[0])

    def _put(self, name: str, data: bytes) -> None:
        self._values.updateValue((name,), (data,))

    def _remove(self, name: str) -> None:
        self._values.removeKey((name,))

    # -- meta --------------------------------------------------------------------------------------------------

    def meta(self) -> Meta | None:
        """What is known; ``None`` before the first batch."""
        found = self._get("meta")
        if found is None:
            return None
        saved = json.loads(found)
        if saved.get("format") != FORMAT:
            raise UsageError(
                f"the checkpoint has state of format {saved.get('format')}, this version of tamis reads {FORMAT}; "
                "start with a new checkpoint"
            )
        saved["chain"] = [tuple(entry) for entry in saved["chain"]]
        saved["waiting"] = {name: [tuple(one) for one in bins] for name, bins in saved.get("waiting", {}).items()}
        return Meta(**saved)

    def put_meta(self, meta: Meta) -> None:
        self._put("meta", json.dumps(asdict(meta)).encode())

    # -- the shard ---------------------------------------------------------------------------------------------

    def load(self, number: int, meta: Meta) -> tuple[Shard, str, int]:
        """The shard at the last version, how it came (warm, caught up, rebuilt), and how many deltas that took."""
        token, shard = _warm.pop(meta.lineage, ("", None))
        missing = meta.since(token) if shard is not None else None
        how = "warm"
        if shard is None or missing is None:
            data = b"".join(self._needed(f"snapshot {k}") for k in range(meta.chunks))
            shard = Shard.restore(number, meta.shards, _unpacked(data))
            missing, how = meta.since(meta.base), "rebuilt"
            if missing is None:
                raise InvariantError("the snapshot and the deltas do not meet")
        elif missing:
            how = "caught up"
        for entry in missing:
            shard.catch_up(self._needed(f"delta {entry[0]}"))
        return shard, how, len(missing)

    def _needed(self, name: str) -> bytes:
        found = self._get(name)
        if found is None:
            raise InvariantError(f"{name} is not in the state store")
        return found

    def save(self, shard: Shard, meta: Meta) -> dict[str, int]:
        """Make the changes of a batch durable: a delta, and a snapshot when the deltas weigh too much."""
        delta, token = shard.delta(), uuid.uuid4().hex
        number = meta.chain[-1][0] + 1 if meta.chain else 0
        self._put(f"delta {number}", delta)
        meta.chain.append((number, token, len(delta)))
        weight = sum(size for _, _, size in meta.since(meta.base) or ())
        size = 0
        if weight > max(4 * 2**20, meta.snapshot_bytes // 2):
            size = self._put_snapshot(shard, meta)
        self._trim(meta)
        self._keep(meta, shard)
        return {"delta_bytes": len(delta), "snapshot_bytes": size}

    def create(self, shard: Shard, meta: Meta) -> dict[str, int]:
        """The first version."""
        meta.lineage, meta.base = uuid.uuid4().hex, uuid.uuid4().hex
        size = self._put_snapshot(shard, meta)
        self._keep(meta, shard)
        return {"delta_bytes": 0, "snapshot_bytes": size}

    def _put_snapshot(self, shard: Shard, meta: Meta) -> int:
        data = _packed(shard.snapshot())
        chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        for k, chunk in enumerate(chunks):
            self._put(f"snapshot {k}", chunk)
        for k in range(len(chunks), meta.chunks):
            self._remove(f"snapshot {k}")
        meta.chunks = len(chunks)
        meta.base, meta.snapshot_bytes = meta.token or meta.base, len(data)
        return len(data)

    def _trim(self, meta: Meta) -> None:
        """Forget the deltas that neither the snapshot nor a worker nearby needs."""
        needed = len(meta.since(meta.base) or ())
        keep = max(needed, min(KEPT, len(meta.chain)))
        for number, _, _ in meta.chain[: len(meta.chain) - keep]:
            self._remove(f"delta {number}")
        meta.chain = meta.chain[len(meta.chain) - keep :]

    def _keep(self, meta: Meta, shard: Shard) -> None:
        _warm[meta.lineage] = (meta.token, shard)
        while len(_warm) > WARM:
            _warm.popitem(last=False)

    # -- events that wait --------------------------------------------------------------------------------------

    def held(self, names: list[str]) -> list[tuple[str, pa.Table]]:
        """Events that wait for other sources, by the name of their table."""
        return [(name, from_bytes(self._needed(f"held {name}"))) for name in names]

    def hold(self, tables: dict[str, pa.Table], before: list[str]) -> list[str]:
        """Replace the events that wait; returns the names of their tables."""
        for name, table in tables.items():
            self._put(f"held {name}", to_bytes(table))
        for name in before:
            if name not in tables:
                self._remove(f"held {name}")
        return list(tables)

    def add_initial(self, name: str, data: bytes) -> None:
        """A pack of initial profiles or contexts; Spark hands them over in pieces. ``name`` has the order."""
        self._put(f"initial {name}", data)

    def take_initial(self) -> list[tuple[str, bytes]]:
        """All of them by name, and none is left."""
        names = sorted(name for (name,) in self._values.keys() if name.startswith("initial "))  # noqa: SIM118
        found = [(name.removeprefix("initial "), self._needed(name)) for name in names]
        for name in names:
            self._remove(name)
        return found


def _packed(files: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(files)
    return bytes(sink.getvalue())


def _unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
