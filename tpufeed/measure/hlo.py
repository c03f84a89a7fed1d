"""Bytes of HBM that a compiled program moves, by its text.

XLA's own count of bytes has those of values that stay in the memory of the chip itself (VMEM), where programs of small
batches keep most of theirs, and counts copies that run beside other work twice. So it is no lower bound of the traffic.
What is counted here is one: it leaves out branches, and rows that are updated in place.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_COMPUTATION = re.compile(r"(ENTRY )?%([\w.-]+) \(.*\{$")
_OP = re.compile(r"\s+(?:ROOT )?%([\w.-]+) = (.+?) ([a-z][\w-]*)\((.*)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_MOVES_NOTHING = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "conditional", "opt-barrier")
_SLICES = ("slice", "dynamic-slice", "gather")


class _Op(NamedTuple):
    """An op of a computation.

    Attributes:
        size: bytes of its result.
        hbm: those of them that are in HBM.
        operands: their names. A parameter has its number instead.
        calls: the computation that it runs.
        times: how often.
    """

    name: str
    code: str
    size: int
    hbm: int
    operands: Sequence[str]
    calls: str
    times: int


_Computations = Mapping[str, Mapping[str, _Op]]


def count_hbm_bytes(text: str) -> int:
    """Return the bytes that a program reads from HBM and writes to it, at least: `text` is that of the compiled module.

    A loop runs as often as XLA knows, or once.
    """
    computations, own, entry = dict[str, dict[str, _Op]](), dict[str, _Op](), ""
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            own = computations[match[2]] = {}
            entry = match[2] if match[1] else entry
        elif match := _OP.match(line):
            own[match[1]] = _read_op(*match.groups())
    return _moved(computations, entry)


def _read_op(name: str, result: str, code: str, rest: str) -> _Op:
    sizes = [(_size(*array[:2]), "S(" not in array[2]) for array in _ARRAY.findall(result)]
    called = re.search(r"(?:calls|body|to_apply)=%([\w.-]+)", rest)
    times = re.search(r'known_trip_count":\{"n":"(\d+)"', rest)
    return _Op(
        name,
        code,
        sum(size for size, _ in sizes),
        sum(size for size, is_in_hbm in sizes if is_in_hbm),
        re.findall(r"%([\w.-]+)", rest.partition(")")[0]) if code != "parameter" else [rest.partition(")")[0]],
        called[1] if called else "",
        int(times[1]) if times else 1,
    )


def _size(dtype: str, lengths: str) -> int:
    bits = 8 if dtype == "pred" else int((re.findall(r"\d+", dtype) or [0])[0])
    return math.prod(map(int, filter(None, lengths.split(",")))) * bits // 8


def _moved(computations: _Computations, name: str) -> int:
    """Return the bytes that a computation moves when it runs once."""
    ops, total = computations.get(name, {}), 0
    for op in ops.values():
        given = [ops[each] for each in op.operands if each in ops]
        if op.code in ("while", "call"):
            total += op.times * _moved(computations, op.calls)
        elif op.code.endswith("-done"):  # of the op that started it, which has the operands
            sources = [ops[each].hbm for start in given for each in start.operands if each in ops]
            total += min(sum(sources), op.size) + op.hbm
        elif op.code not in _MOVES_NOTHING and not op.code.endswith("-start"):
            body = computations.get(op.calls, {}) if op.code == "fusion" else {}
            places = _parameters(body)
            for number, each in enumerate(given):
                part = _read(computations, op.calls, places[number]) if body else each.size
                total += min(each.hbm, part)
            root = [*body.values()][-1] if body else op
            total += 0 if root.code in ("dynamic-update-slice", "scatter") else op.hbm
    return total


def _parameters(ops: Mapping[str, _Op]) -> dict[int, str]:
    """Return the names of the parameters of a computation, by their numbers."""
    return {int(op.operands[0]): op.name for op in ops.values() if op.code == "parameter"}


def _read(computations: _Computations, name: str, value: str) -> int:
    """Return how many bytes of a value a fused computation reads: slices of it, or all."""
    ops, total = computations[name], 0
    for op in ops.values():
        for number, each in enumerate(op.operands if op.code != "parameter" else ()):
            if each != value:
                continue
            if op.code in _SLICES:
                total += op.size
            elif op.code == "bitcast":
                total += _read(computations, name, op.name)
            elif op.code == "fusion":
                total += _read(computations, op.calls, _parameters(computations[op.calls])[number])
            elif op.code != "dynamic-update-slice" or number:
                return ops[value].size
    return min(total, ops[value].size)
