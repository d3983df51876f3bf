"""What the C extension and Python hand each other: structs of native.h."""

from __future__ import annotations

import ctypes


class LibraryStruct(ctypes.Structure):
    """`Library` of native.h."""

    _fields_ = (
        ("pool", ctypes.c_void_p),
        ("isa", ctypes.c_int32),
        ("vnni", ctypes.c_int32),
        ("bf16", ctypes.c_int32),
        ("amx", ctypes.c_int32),
        ("neon", ctypes.c_int32),
        ("dot", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    )


class LinearStruct(ctypes.Structure):
    """`Linear` of native.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("round_inputs", ctypes.c_int32),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("lanes", ctypes.c_int64),
        ("bases", ctypes.c_void_p),
        ("exceptions", ctypes.c_void_p),
        ("firsts", ctypes.c_void_p),
        ("group", ctypes.c_int64),
        ("is_whole", ctypes.c_int64),
        ("table", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("numbers", ctypes.c_int64),
    )
