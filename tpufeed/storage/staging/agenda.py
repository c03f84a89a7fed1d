"""What is due, and what was fetched ahead of it. Only decides; whoever uses it locks it."""

from collections.abc import Callable, Container, Iterable, Mapping

from tpufeed.storage.staging.folder import release
from tpufeed.storage.staging.shard import RemoteShard

_HELD = 64  # copies ahead that hold a descriptor; what is further ahead only we ourselves do not evict


class Agenda:
    """The shards of one consumer in the order in which they are due.

    A shard is due, then begun or put off, then ahead (its copy is there), then opened. What an earlier list asked for
    and what was not opened since is left over: it stays, unless a shard that is needed next finds no room.
    """

    def __init__(self) -> None:
        self._due: dict[RemoteShard, str] = {}
        self._listed: set[RemoteShard] = set()
        self._begun: set[RemoteShard] = set()
        self._elsewhere: set[RemoteShard] = set()
        self._put_off: dict[RemoteShard, tuple[float, str]] = {}
        self._ahead: dict[RemoteShard, tuple[str, int | None]] = {}
        self._left_over: dict[RemoteShard, tuple[str, int | None]] = {}

    def replace(
        self,
        shards: Iterable[tuple[RemoteShard, str]],
        failing: Mapping[RemoteShard, float],
        in_use: Container[RemoteShard] = (),
    ) -> None:
        """`shards` with the keys of their copies are due now; `failing` ones not before the time given there.

        Those `in_use` are due only if they have gone by the time that they are looked for.
        """
        self._left_over |= self._ahead
        self._ahead.clear()
        self._due.clear()
        self._put_off.clear()
        self._elsewhere.clear()
        self._listed.clear()
        for shard, key in shards:
            self._listed.add(shard)
            if shard in self._left_over:
                self._ahead[shard] = self._left_over.pop(shard)
            elif shard in in_use:
                continue
            elif shard in failing:
                self._put_off[shard] = failing[shard], key
            elif shard not in self._begun:
                self._due[shard] = key

    def first(self, now: float) -> tuple[RemoteShard, str] | None:
        """What is to be begun next, and the key of its copy."""
        ripe = {shard: key for shard, (at, key) in self._put_off.items() if at <= now}
        if ripe:
            self._due = ripe | self._due
            for shard in ripe:
                del self._put_off[shard]
            self._elsewhere -= ripe.keys()
        return next(iter(self._due.items()), None)

    def next_time(self) -> float | None:
        """When what was put off is due again."""
        return min((at for at, _ in self._put_off.values()), default=None)

    def begin(self, shard: RemoteShard) -> None:
        """It is being fetched."""
        self._due.pop(shard, None)
        self._begun.add(shard)

    def put_off(self, shard: RemoteShard, key: str, until: float, elsewhere: bool = False) -> None:
        """It could not be fetched, or somebody else does it: it is due again later, if it is still asked for."""
        self._due.pop(shard, None)
        self._begun.discard(shard)
        if shard in self._listed:
            self._put_off[shard] = until, key
            if elsewhere:
                self._elsewhere.add(shard)

    def drop(self, shard: RemoteShard) -> None:
        """It is in use, was opened, or never will be."""
        self._due.pop(shard, None)
        self._begun.discard(shard)
        self._put_off.pop(shard, None)
        self._elsewhere.discard(shard)
        self._listed.discard(shard)
        _let_go([self._ahead.pop(shard, None), self._left_over.pop(shard, None)])

    def stage(self, shard: RemoteShard, key: str, descriptor: int) -> None:
        """Its copy is there, held by `descriptor`."""
        if shard not in self._due and shard not in self._begun:  # it was opened before this was noted
            release(descriptor)
            return
        self._due.pop(shard, None)
        self._begun.discard(shard)
        copies = self._ahead if shard in self._listed else self._left_over
        _let_go([copies.pop(shard, None)])
        if len(self._ahead) + len(self._left_over) < _HELD:
            copies[shard] = key, descriptor
        else:
            copies[shard] = key, None
            release(descriptor)

    def lose(self, shard: RemoteShard, key: str) -> bool:
        """It was looked for and is not there. If it should have been, it is due at once and this is True."""
        if shard not in self._listed or shard in self._due or shard in self._begun or shard in self._put_off:
            return False
        _let_go([self._ahead.pop(shard, None)])
        self._due = {shard: key} | self._due
        return True

    def want_again(self, shard: RemoteShard, key: str) -> None:
        """Its copy was opened, and has gone: it is due at once."""
        self._listed.add(shard)
        self.lose(shard, key)

    def forget_gone(self, is_there: Callable[[str], bool]) -> None:
        """What was fetched ahead and has gone since, as another process found it damaged, is not ahead."""
        for copies in (self._ahead, self._left_over):
            gone = [shard for shard, (key, _) in copies.items() if not is_there(key)]
            _let_go([copies.pop(shard) for shard in gone])

    def is_needed_next(self) -> bool:
        """Whether nothing that is due sooner than the first waits to be opened or is on its way."""
        return not self._ahead and not self._elsewhere and self._begun.isdisjoint(self._listed)

    def forget_left_over(self) -> None:
        """What earlier lists asked for may go."""
        _let_go(self._left_over.values())
        self._left_over.clear()

    def spared(self) -> frozenset[str]:
        """Keys of the copies that are not to be evicted."""
        return frozenset(key for key, _ in (*self._ahead.values(), *self._left_over.values()))

    def descriptors(self) -> list[int]:
        """Those that hold copies."""
        copies = (*self._ahead.values(), *self._left_over.values())
        return [descriptor for _, descriptor in copies if descriptor is not None]

    def due(self) -> dict[str, int]:
        """Keys of the copies that are due, in order."""
        return {key: number for number, key in enumerate(self._due.values())}

    def clear(self) -> None:
        """Nothing is due any more, and nothing held."""
        self.replace((), {})
        self.forget_left_over()


def _let_go(copies: Iterable[tuple[str, int | None] | None]) -> None:
    for copy in copies:
        if copy is not None and copy[1] is not None:
            release(copy[1])
