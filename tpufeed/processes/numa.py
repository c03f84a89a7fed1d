"""NUMA nodes of this host: their cores and TPU chips, and the node that each worker process runs on.

A worker whose cores and batches are on one node only uses the memory of that node. Linux puts a page on the node of the
core that first touches it, unless a policy says otherwise (Documentation/admin-guide/mm/numa_memory_policy.rst).
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SYS = Path("/sys")
_GOOGLE = "0x1ae0"
# PCI devices of TPU chips from v2 to TPU7x, as in JAX (jax/_src/hardware_utils.py). Google's network cards have the
# same vendor.
_CHIPS = frozenset(("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"))
_CORES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


class Node(NamedTuple):
    """A NUMA node: the cores that this process may use, and the indices of its TPU chips among those of the host."""

    number: int
    cores: tuple[int, ...]
    chips: tuple[int, ...]


def find_nodes(root: Path = _SYS) -> list[Node]:
    """Return the nodes that have cores, empty if the system does not tell.

    Cores that an affinity mask or the cpuset of a container excludes are left out.

    Args:
        root: the folder /sys.
    """
    found = list[Node]()
    chips = [_read(slot / "numa_node") for slot in _iter_chips(root)]
    if "-1" in chips:  # the nodes of some chips are unknown, so the ranks' shares would be wrong
        chips = []
    for folder in sorted(root.glob("devices/system/node/node[0-9]*"), key=lambda folder: int(folder.name[4:])):
        number = folder.name[4:]
        cores = _parse_cores(_read(folder / "cpulist"))
        if cores:  # else the node only has memory, like that of a device
            allowed = os.sched_getaffinity(0)
            own = tuple(place for place, node in enumerate(chips) if node == number)
            found.append(Node(int(number), tuple(core for core in cores if core in allowed), own))
    return found


def place_workers(nodes: Sequence[Node], count: int, rank: int = 0, ranks: int = 1) -> list[Node]:
    """Return the node of each of the `count` worker processes of a rank, empty if there is no choice.

    The only rank of a host feeds all its chips, and its workers are spread over all nodes. Each of several ranks has
    the nodes of its share of the chips. If the chips of a node are unknown, each rank has its share of the nodes,
    because the cores of a node without chips would be idle. Nodes get workers in proportion to their cores. If there
    are fewer workers than nodes, they may run on all nodes, for the same reason.

    Args:
        nodes: the nodes of the host.
        count: number of worker processes.
        rank: rank of this process among those of this host.
        ranks: number of ranks on this host.
    """
    usable = [node for node in nodes if node.cores]
    if len(usable) < 2:
        return []
    if ranks > 1:
        share = usable[rank * len(usable) // ranks : -(-(rank + 1) * len(usable) // ranks)]
        fed = list[Node]()
        if all(node.chips for node in usable):
            chips = sum(len(node.chips) for node in nodes)
            own = {chip for chip in range(chips) if chip * ranks // chips == rank}
            fed = [node for node in usable if own.intersection(node.chips)]
        usable = fed or share
    if count < len(usable):
        return []
    placed = list[Node]()
    for _ in range(count):
        placed.append(max(usable, key=lambda node: len(node.cores) / (placed.count(node) + 1)))
    return placed


def describe_nodes(nodes: Sequence[Node]) -> str:
    """Describe the nodes in words."""
    if not nodes:
        return "NUMA nodes n/a"
    if len(nodes) == 1:
        return "1 NUMA node"
    said = [
        f"node {node.number}: "
        + (f"{len(node.cores)} cores" if node.cores else "no core that this process may use")
        + (f", {len(node.chips)} TPU chips" if node.chips else "")
        for node in nodes
    ]
    return f"{len(nodes)} NUMA nodes ({'; '.join(said)})"


def _iter_chips(root: Path) -> Iterator[Path]:
    """Yield the PCI slots of TPU chips in the order of their addresses, as libtpu numbers them."""
    for slot in sorted(root.glob("bus/pci/devices/*")):
        if _read(slot / "vendor") == _GOOGLE and _read(slot / "device") in _CHIPS:
            yield slot


def _parse_cores(text: str) -> list[int]:
    """Return the numbers of a Linux list like "0-3,8-11,16", empty for any other text."""
    if not _CORES.fullmatch(text):
        return []
    cores = list[int]()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
