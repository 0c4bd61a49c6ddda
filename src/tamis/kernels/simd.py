"""Machine instructions that Numba does not spell: a byte-range test over 32 lanes, bit counts, prefetch.

A *line* is 64 bytes: 32 low bounds, then 32 high bounds. ``covers`` tests a byte (or two, one for each end)
against all 32 ranges of a line and returns a 32-bit mask. LLVM turns it into six AVX2 instructions (or the equal on
other processors); a loop over bytes that leaves the mask in memory is about five times slower.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 32
_VECTOR = ir.VectorType(ir.IntType(8), LANES)


def _load(builder, at):
    """32 bytes from anywhere."""
    return builder.load(builder.bitcast(at, _VECTOR.as_pointer()), align=1)


def _splat(builder, byte):
    """32 times the same byte."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(undefined, byte, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _line_test(op: str):
    """Make an intrinsic ``f(lines, offset, x, y) -> uint32``: bit t is ``low[t] op x and y op high[t]``."""

    def typer(typingctx, lines, offset, x, y):
        sig = types.uint32(lines, types.int64, types.uint8, types.uint8)

        def codegen(context, builder, signature, args):
            array = context.make_array(signature.args[0])(context, builder, args[0])
            at = builder.gep(array.data, [args[1]])
            low, high = _load(builder, at), _load(builder, builder.gep(at, [ir.Constant(ir.IntType(64), LANES)]))
            below = builder.icmp_unsigned(op, low, _splat(builder, args[2]))
            above = builder.icmp_unsigned(op, _splat(builder, args[3]), high)
            return builder.bitcast(builder.and_(below, above), ir.IntType(32))

        return sig, codegen

    return intrinsic(typer)


covers = _line_test("<=")
covers.__doc__ = "Mask of the 32 ranges [low, high] of the line at ``offset`` with ``low <= x`` and ``y <= high``."
covers_strictly = _line_test("<")
covers_strictly.__doc__ = "As ``covers``, without the ends: ``low < x`` and ``y < high``."


@intrinsic
def within(typingctx, column, offset, low, high):
    """Mask of the 32 bytes at ``offset`` that lie in [low, high], ``low <= high``."""
    sig = types.uint32(column, types.int64, types.uint8, types.uint8)

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        # One comparison for both ends: what is below the low end wraps around.
        found = builder.sub(_load(builder, builder.gep(data, [args[1]])), _splat(builder, args[2]))
        inside = builder.icmp_unsigned("<=", found, _splat(builder, builder.sub(args[3], args[2])))
        return builder.bitcast(inside, ir.IntType(32))

    return sig, codegen


@intrinsic
def row_within(typingctx, table, row, low, high, free):
    """Whether eight doubles from ``row`` on lie between those of ``low`` and ``high``, but for the bits of ``free``."""
    sig = types.boolean(table, types.int64, low, high, types.uint8)

    def codegen(context, builder, signature, args):
        eight = ir.VectorType(ir.DoubleType(), 8)

        def load(which, at):
            data = context.make_array(signature.args[which])(context, builder, args[which]).data
            return builder.load(builder.bitcast(builder.gep(data, [at]), eight.as_pointer()), align=8)

        zero = ir.Constant(ir.IntType(64), 0)
        found = load(0, args[1])
        above = builder.fcmp_ordered("<=", load(2, zero), found)
        below = builder.fcmp_ordered("<=", found, load(3, zero))
        inside = builder.bitcast(builder.and_(above, below), ir.IntType(8))
        return builder.icmp_unsigned("==", builder.or_(inside, args[4]), ir.Constant(ir.IntType(8), 255))

    return sig, codegen


@intrinsic
def between(typingctx, column, offset, low, high):
    """Mask of the eight doubles at ``offset`` that lie in [low, high]; NaN lies nowhere."""
    sig = types.uint32(column, types.int64, types.float64, types.float64)

    def codegen(context, builder, signature, args):
        eight = ir.VectorType(ir.DoubleType(), 8)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        x = builder.load(builder.bitcast(builder.gep(data, [args[1]]), eight.as_pointer()), align=8)

        def splat(value):
            undefined = ir.Constant(eight, ir.Undefined)
            one = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8))

        above = builder.fcmp_ordered("<=", splat(args[2]), x)
        below = builder.fcmp_ordered("<=", x, splat(args[3]))
        mask = builder.bitcast(builder.and_(above, below), ir.IntType(8))
        return builder.zext(mask, ir.IntType(32))

    return sig, codegen


@intrinsic
def compress(typingctx, source, offset, mask, out, n):
    """Of the 32 integers at ``offset`` write those in ``mask`` to ``out``, from ``n`` on; returns where they end.

    There has to be room for 32, whatever the mask is. A loop over bits takes a few cycles for each, and a mispredicted
    branch.
    """
    sig = types.int64(source, types.int64, types.uint32, out, types.int64)

    def codegen(context, builder, signature, args):
        i16, i32, i64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
        half = ir.VectorType(i32, 16)
        bits = ir.VectorType(ir.IntType(1), 16)
        kind = ir.FunctionType(half, [half, bits, half])
        pack = cgutils.get_or_insert_function(builder.module, kind, "llvm.experimental.vector.compress.v16i32")
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        to = context.make_array(signature.args[3])(context, builder, args[3]).data
        n = args[4]
        for k in range(2):
            at = builder.gep(data, [builder.add(args[1], ir.Constant(i64, 16 * k))])
            values = builder.load(builder.bitcast(at, half.as_pointer()), align=4)
            mine = builder.trunc(builder.lshr(args[2], ir.Constant(i32, 16 * k)), i16)
            packed = builder.call(pack, [values, builder.bitcast(mine, bits), ir.Constant(half, ir.Undefined)])
            builder.store(packed, builder.bitcast(builder.gep(to, [n]), half.as_pointer()), align=4)
            n = builder.add(n, builder.zext(builder.ctpop(mine), i64))
        return n

    return sig, codegen


@intrinsic
def prefetch(typingctx, array, offset):
    """Ask for the cache line of a flat element of an array, without waiting for it."""
    sig = types.void(array, types.int64)

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        at = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), i32, i32, i32])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # Read and keep in all cache levels, data cache.
        builder.call(ask, [at, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def lowest_bit(typingctx, mask):
    """The position of the lowest set bit of a non-zero mask of 32 or 64 bits."""
    sig = types.int64(types.uint64 if mask is types.uint64 else types.uint32)

    def codegen(context, builder, signature, args):
        n = builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
        return n if n.type.width == 64 else builder.zext(n, ir.IntType(64))

    return sig, codegen


@intrinsic
def count_bits(typingctx, mask):
    """The number of set bits of a mask of 32 or 64 bits."""
    sig = types.int64(types.uint64 if mask is types.uint64 else types.uint32)

    def codegen(context, builder, signature, args):
        bits = builder.ctpop(args[0])
        return bits if bits.type.width == 64 else builder.zext(bits, ir.IntType(64))

    return sig, codegen


@intrinsic
def cycles(typingctx):
    """The processor's clock: what costs are measured with where a call of Python's clock would cost more than they."""
    sig = types.int64()

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(64), [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter"), [])

    return sig, codegen
