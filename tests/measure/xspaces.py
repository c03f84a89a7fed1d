"""XSpace files of steps that one lays out oneself, written byte by byte: what a TPU's profiler would have written.

Field numbers and names of lines and stats are those of tsl's xplane.proto and xplane_schema; `test_xplane.py` has
another reader than ours say that they are right.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PS_PER_MS = 10**9
TFLOPS, PEAK_TFLOPS = 1.0, 197.0  # of each op; of the device

Stats = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Op:
    """Runs from `start_ms` of its step on."""

    start_ms: float
    ms: float
    category: str = "convolution fusion"


@dataclass(frozen=True)
class Step:
    ms: float
    ops: tuple[Op, ...]
    marked: bool = True  # on the line "Steps"


def step(ms: float, idle: float, infeed: float = 0.0) -> Step:
    """A step of which `infeed` goes to an infeed op at its start; it is idle for `idle` of it, at two places."""
    fed = ms * infeed
    half = ms * (1 - idle - infeed) / 2
    ops = [Op(0, fed, "infeed")] if infeed else []
    if half > 0:
        ops += [Op(fed, half), Op(fed + half + ms * idle / 2, half, "loop fusion")]
    return Step(ms, tuple(ops))


@dataclass
class Plane:
    """Lines of events with their names and stats interned, as XPlane has them."""

    name: str
    id: int = 0  # xprof tells cores apart by it
    events: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    body: bytes = b""

    def add_stats(self, stats: Stats) -> None:
        self.body += self._stats(6, stats)

    def add_line(self, name: str, events: Sequence[tuple[str, float, float, Stats, Stats]]) -> None:
        """Events are (name, start in ms, ms, stats of all events of that name, stats of its own)."""
        line = number(1, 1 + self.body.count(b"XLA")) + text(2, name) + number(3, 1_000_000)
        for event, start, ms, common, own in events:
            entry = number(1, self._event(event, common)) + number(2, round(start * PS_PER_MS))
            line += nested(4, entry + number(3, round(ms * PS_PER_MS)) + self._stats(4, own))
        self.body += nested(3, line)

    def encode(self) -> bytes:
        named = [nested(4, number(1, i) + nested(2, number(1, i) + m)) for i, m in self.events.values()]
        known = [nested(5, number(1, i) + nested(2, number(1, i) + text(2, n))) for n, i in self.stats.items()]
        return number(1, self.id) + text(2, self.name) + self.body + b"".join(named + known)

    def _event(self, name: str, common: Stats) -> int:
        if name not in self.events:
            self.events[name] = len(self.events) + 1, text(2, name) + self._stats(5, common)
        return self.events[name][0]

    def _stats(self, tag: int, stats: Stats) -> bytes:
        encoded = b""
        for name, value in stats.items():
            stat = number(1, self.stats.setdefault(name, len(self.stats) + 1))
            if isinstance(value, float):
                stat += varint(2 << 3 | 1) + struct.pack("<d", value)
            else:
                stat += text(5, value) if isinstance(value, str) else number(4, value)
            encoded += nested(tag, stat)
        return encoded


def tensor_core(ordinal: int, steps: Sequence[Step], first: int = 0) -> Plane:
    """The plane of one core that runs `steps` one after the other; the first of them is number `first`."""
    plane = Plane(f"/device:TPU:{ordinal}", ordinal + 1)
    plane.add_stats(
        {
            "device_type_string": "TPU v5e",
            "peak_teraflops_per_second": PEAK_TFLOPS,
            "peak_hbm_bw_gigabytes_per_second": 819.0,
        }
    )
    marks, modules, ops = [], [], []
    at = 0.0
    for group, each in enumerate(steps, first):
        own = {"group_id": group}
        if each.marked:
            marks.append((str(group), at, each.ms, {}, own))
        for op in each.ops:
            common = {"hlo_category": op.category, "program_id": 1, "symbol_id": len(op.category)}
            if op.category != "infeed":
                common |= {"flops": int(TFLOPS * 1e12), "model_flops": int(TFLOPS * 1e12), "bytes_accessed": 10**9}
            ops.append((f"%{op.category.replace(' ', '_')}.1", at + op.start_ms, op.ms, common, own))
        modules.append(("jit_step(1)", at, each.ms, {}, own | {"run_id": group + 1}))
        at += each.ms
    for name, events in (("Steps", marks), ("XLA Modules", modules), ("XLA Ops", ops)):
        if events:
            plane.add_line(name, events)
    return plane


def host_plane(mxu_percent: float | None = None) -> Plane:
    plane = Plane("/host:CPU")
    if mxu_percent is not None:
        plane.add_stats({"matrix_unit_utilization_percent": mxu_percent})
    return plane


def encode_xspace(*planes: Plane, errors: Sequence[str] = ()) -> bytes:
    return b"".join([nested(1, plane.encode()) for plane in planes] + [text(2, error) for error in errors])


def write_profile(logdir: Path, run: str, **hosts: bytes) -> Path:
    """`logdir`, with a run as profilers leave it: a file a host."""
    folder = logdir / "plugins" / "profile" / run
    folder.mkdir(parents=True)
    for host, encoded in hosts.items():
        (folder / f"{host}.xplane.pb").write_bytes(encoded)
    return logdir


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def number(tag: int, value: int) -> bytes:
    return varint(tag << 3) + varint(value)


def nested(tag: int, value: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(value)) + value


def text(tag: int, value: str) -> bytes:
    return nested(tag, value.encode())
