"""Binary encoding of long number arrays for Postgres; psycopg's own dumper makes a Python call for each number.

Importing this registers the dumpers with psycopg.
"""

import struct
from collections.abc import Sequence

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_INT4, _FLOAT8 = psycopg.adapters.types["int4"], psycopg.adapters.types["float8"]


class Integers(bytes):
    """An `integer[]`."""

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Integers":
        return cls(_packed(_INT4.oid, "i", numbers))


class Doubles(bytes):
    """A `double precision[]`; preserves NaN and infinities."""

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Doubles":
        return cls(_packed(_FLOAT8.oid, "d", numbers))


def _packed(oid: int, letter: str, numbers: Sequence[float]) -> bytes:
    """The wire format: a header (dimensions, NULLs, type, length, first index), then each number after its size in bytes."""
    count, size = len(numbers), struct.calcsize(letter)
    parts: list[float] = [size] * (2 * count)
    parts[1::2] = numbers
    return struct.pack(f"!iiIii{('i' + letter) * count}", 1, 0, oid, count, 1, *parts)


class _Packed(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _IntegersDumper(_Packed):
    oid = _INT4.array_oid


class _DoublesDumper(_Packed):
    oid = _FLOAT8.array_oid


psycopg.adapters.register_dumper(Integers, _IntegersDumper)
psycopg.adapters.register_dumper(Doubles, _DoublesDumper)
