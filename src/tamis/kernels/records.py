"""Bundles that pass into kernels as one pointer.

A NamedTuple of arrays is passed by value, some seven machine words per array: with sixty arrays a call between
kernels cost 0.2 to 0.7 microseconds and compiling them took minutes. A :class:`Record` passes the address of a table
instead, four words per field: address and shape of an array, or the address of a nested record's table. Inside a
kernel fields are read by name as before. The Python object keeps its arrays alive; kernels never own them.

All arrays are C-contiguous. A record's arrays are fixed: growing one means making a new record.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.extending import intrinsic, register_model, typeof_impl, unbox
from numba.core.imputils import lower_getattr_generic
from numba.core.pythonapi import NativeValue
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

WORDS = 4


class Record:
    """Base of all bundles. Subclasses state their fields: name -> (dtype, dimensions), or another record class."""

    FIELDS: ClassVar[dict[str, Any]] = {}
    numba_type: ClassVar[RecordType]
    _numba_type_: ClassVar[RecordType]

    def __init_subclass__(cls) -> None:
        cls.numba_type = RecordType(cls)
        cls._numba_type_ = cls.numba_type  # the name by which Numba's dispatcher finds it fastest

    def __init__(self, *arrays: Any, **fields: Any) -> None:
        fields.update(zip(self.FIELDS, arrays, strict=False))
        table = np.zeros(WORDS * len(self.FIELDS), np.int64)
        for i, (name, kind) in enumerate(self.FIELDS.items()):
            value = fields[name]
            if isinstance(kind, tuple):
                dtype, dimensions = kind
                if value.dtype != dtype or value.ndim != dimensions or not value.flags.c_contiguous:
                    raise TypeError(f"{type(self).__name__}.{name}: expected a contiguous {dtype} array [{dimensions}]")
                table[WORDS * i] = value.__array_interface__["data"][0]
                table[WORDS * i + 1 : WORDS * i + 1 + dimensions] = value.shape
            else:
                table[WORDS * i] = value.address
            setattr(self, name, value)
        self._table = table
        self.address: int = table.__array_interface__["data"][0]

    def __getattr__(self, name: str) -> Any:  # for type checkers: fields are set in __init__
        raise AttributeError(name)

    def asdict(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in self.FIELDS}

    def replace(self, **changes: Any) -> Self:
        """The same record with other arrays for some fields."""
        return type(self)(**{**self.asdict(), **changes})

    @classmethod
    def current(cls, known: Self | None, *arrays: Any) -> Self:
        """The known record if it has exactly these arrays, else a new one."""
        if known is not None:
            fields = known.__dict__
            for name, array in zip(cls.FIELDS, arrays, strict=True):
                if fields[name] is not array:
                    break
            else:
                return known
        return cls(*arrays)


class RecordType(types.Type):
    """The Numba type of a record class."""

    def __init__(self, record: type[Record]) -> None:
        self.record = record
        super().__init__(name=f"Record({record.__module__}.{record.__qualname__})")

    def field(self, name: str) -> tuple[int, types.Type]:
        """Position and type of a field."""
        kind = self.record.FIELDS[name]
        position = list(self.record.FIELDS).index(name)
        if isinstance(kind, tuple):
            return position, types.Array(from_dtype(np.dtype(kind[0])), kind[1], "C")
        return position, kind.numba_type


def at_address(record: type[Record]) -> Any:
    """A function for kernels: the record of that class whose ``address`` is given."""

    @intrinsic  # type: ignore[misc]
    def cast(typingctx: Any, address: Any) -> Any:
        def same(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return arguments[0]

        return record.numba_type(types.int64), same

    return cast


@register_model(RecordType)
class _Model(PrimitiveModel):
    def __init__(self, manager: Any, fe_type: RecordType) -> None:
        super().__init__(manager, fe_type, ir.IntType(64))


@typeof_impl.register(Record)
def _typeof(value: Record, context: Any) -> RecordType:
    return type(value).numba_type


@unbox(RecordType)
def _unbox(typ: RecordType, obj: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(obj, "address")
    native = c.pyapi.number_as_ssize_t(address)
    c.pyapi.decref(address)
    return NativeValue(native, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))


@infer_getattr
class _Attributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, typ: RecordType, attr: str) -> types.Type | None:
        return typ.field(attr)[1] if attr in typ.record.FIELDS else None


@lower_getattr_generic(RecordType)
def _getattr(context: Any, builder: Any, typ: RecordType, value: Any, attr: str) -> Any:
    position, field_type = typ.field(attr)
    word = ir.IntType(64)
    table = builder.inttoptr(value, word.as_pointer())

    def read(i: int) -> Any:
        return builder.load(builder.gep(table, [ir.Constant(word, WORDS * position + i)]))

    if isinstance(field_type, RecordType):
        return read(0)
    array = make_array(field_type)(context, builder)
    itemsize = context.get_abi_sizeof(context.get_data_type(field_type.dtype))
    shape = [read(1 + d) for d in range(field_type.ndim)]
    strides = [ir.Constant(word, itemsize)]
    for extent in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    populate_array(
        array,
        data=builder.inttoptr(read(0), context.get_data_type(field_type.dtype).as_pointer()),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=ir.Constant(word, itemsize),
        meminfo=None,
    )
    return array._getvalue()
