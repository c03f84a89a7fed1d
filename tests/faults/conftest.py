"""Photographs, a dataset and a cache of them, and faults that come at exact moments, here and in other processes."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tpufeed
from tests.conftest import make_photos
from tests.faults import remote
from tests.forked import Forked
from tests.gcs_server import GcsServer
from tpufeed import cache
from tpufeed.cli.app import app
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.memory import MemoryStore

ROOT = Path(__file__).parents[2]
TPUFEED = Path(sys.executable).with_name("tpufeed")
PHOTOS = 40


@pytest.fixture(scope="session")
def photo_folder(once):
    """40 photographs of 5 kB in two class folders; not to be changed."""
    return once(make_photos, PHOTOS, "96x72", 2)


@pytest.fixture(scope="session")
def dataset_url(once, photo_folder):
    """One split in several shards; not to be changed."""
    return str(once(_make_dataset, photo_folder))


def _make_dataset(folder, photos):
    tpufeed.shard(photos, folder, shard_bytes="30KB", workers=1)


@pytest.fixture(scope="session")
def cache_url(once, dataset_url):
    """Raw pixels of 32x32 in two variants; not to be changed."""
    return str(once(_make_cache, dataset_url))


def _make_cache(folder, url):
    cache.warmup(url, folder, size=32, variants=2, shard_bytes="40KB", workers=1)


@pytest.fixture
def copy(dataset_url, tmp_path):
    """A copy of the dataset to damage."""
    return Path(shutil.copytree(dataset_url, tmp_path / "copy"))


@pytest.fixture
def cache_copy(cache_url, tmp_path):
    """A copy of the cache to damage."""
    return Path(shutil.copytree(cache_url, tmp_path / "cache-copy"))


@pytest.fixture(scope="session")
def bytes_of():
    """`bytes_of(folder)`: shards, indexes and rejects by name: all of which has to be the same."""

    def read(folder):
        names = (".tfrecord", ".npy", "rejects.jsonl")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name.endswith(names)}

    return read


@pytest.fixture
def in_memory(tmp_path):
    """`in_memory(folder)`: the URL of a copy that has no local files, so that all is read by ranges."""

    def make(folder):
        store = MemoryStore(f"memory://{tmp_path}/{Path(folder).name}")
        for path in Path(folder).rglob("*"):
            if path.is_file():
                store.put(str(path.relative_to(folder)), path.read_bytes())
        return store.url

    return make


@pytest.fixture
def run():
    """`run(*words)`: the command line in this process, at its end."""

    def go(*words):
        done = CliRunner().invoke(app, list(map(str, words)), prog_name="tpufeed")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    return go


# Faults in this process. Python's audit events come just before the calls that they name; nothing of tpufeed is
# replaced. A hook cannot be removed, so there is one, and it does nothing while there is no order.

_PATH_OF = {"open": 0, "os.link": 1, "os.remove": 0, "os.rename": 1, "os.mkdir": 0, "os.scandir": 0}
_orders = []


def _watch(event, args):
    if not _orders or event not in _PATH_OF:
        return
    path = args[_PATH_OF[event]]
    if not isinstance(path, (str, os.PathLike)):
        return
    for order in list(_orders):
        order.meet(event, os.fspath(path), args)


sys.addaudithook(_watch)


class Order:
    """`action` comes just before the `nth` event (0: each) of this name on a path that `match` finds."""

    def __init__(self, event, match, action, nth):
        self.event, self.match, self.action, self.nth = event, match, action, nth
        self.seen = self.fired = 0

    def meet(self, event, path, args):
        if event != self.event or not re.search(self.match, path):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
            return  # only where something is to be written
        self.seen += 1
        if self.nth in (self.seen, 0):
            self.fired += 1
            self.action()


@pytest.fixture
def fault():
    """`with fault(event, match, action, nth) as order`; an int for an action is the errno to fail with."""

    @contextmanager
    def arm(event, match, action, nth=1):
        def fail():
            raise OSError(action, os.strerror(action))

        order = Order(event, match, fail if isinstance(action, int) else action, nth)
        _orders.append(order)
        try:
            yield order
        finally:
            _orders.remove(order)
        assert order.fired, f"the fault never came; {order.seen} such events were seen"

    return arm


# Faults in other processes.

_HOOK = """
import os, re, signal, sys

HERE = {here!r}
_file = os.open(HERE + "/events", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_path_of = {{"open": 0, "os.link": 1, "os.remove": 0, "os.rename": 1}}

def watch(event, args):
    if event not in _path_of:
        return
    path = args[_path_of[event]]
    if not isinstance(path, (str, os.PathLike)) or not re.search({match!r}, event + " " + os.fspath(path)):
        return
    os.write(_file, b"x")
    if {nth} and os.fstat(_file).st_size >= {nth} and not os.path.exists(HERE + "/fired"):  # two may write at once
        try:
            os.close(os.open(HERE + "/fired", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.killpg(os.getpgrp(), {signal})

sys.addaudithook(watch)
"""


class Struck:
    """`tpufeed` with both workers in a process group that a signal strikes as the nth matching event is about to come.

    Events read like "os.link /path" and are those of the launcher and of its workers; `nth` 0 counts them only.
    """

    def __init__(self, folder, match, nth=0, number=signal.SIGKILL):
        folder.mkdir()
        self._folder = folder
        text = _HOOK.format(here=str(folder), match=match, nth=nth, signal=int(number))
        (folder / "sitecustomize.py").write_text(text)

    def replace_in_hook(self, old, new):
        path = self._folder / "sitecustomize.py"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def run(self, *words, under=()):
        """`under`: a command that runs it."""
        path = os.pathsep.join(filter(None, [str(self._folder), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path}
        if not under:
            forked = Forked(words, self._folder / "sitecustomize.py", environment)
            said = forked.communicate()
            return subprocess.CompletedProcess(words, forked.returncode, *said)
        return subprocess.run(
            [*under, TPUFEED, *map(str, words)],
            env=environment,
            start_new_session=True,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def events(self):
        return (self._folder / "events").stat().st_size

    @property
    def fired(self):
        return (self._folder / "fired").exists()


@pytest.fixture
def struck(tmp_path):
    """`struck(match, nth, signal)`: a fresh `Struck`."""

    def make(match, nth=0, number=signal.SIGKILL):
        return Struck(tmp_path / f"hook-{len(list(tmp_path.glob('hook-*')))}", match, nth, number)

    return make


# Faults of a network: a server in a process of its own, and datasets that stand there.


@pytest.fixture(scope="session")
def running_server():
    with GcsServer(process=True, md5=False) as server:
        yield server


@pytest.fixture
def server(running_server, monkeypatch):
    """The server, without faults, and with nothing logged or stored but what lies below kept/."""
    for key, value in running_server.environment().items():
        monkeypatch.setenv(key, value)
    running_server.clear_faults()
    for name in running_server.names("bucket"):
        if not name.startswith("kept/"):
            running_server.remove("bucket", name)
    running_server.clear_log()
    yield running_server
    running_server.configure(latency_ms=0)


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Faults are waited out in shorter steps than by default."""
    monkeypatch.setattr(GcsStore.__init__, "__defaults__", (remote.QUICK,))


@pytest.fixture
def patience(monkeypatch):
    """`patience(patience)`: all stores of this process have it from now on."""
    return lambda patience: monkeypatch.setattr(GcsStore.__init__, "__defaults__", (patience,))


@pytest.fixture(scope="session")
def kept(running_server, photo_folder):
    """The URL of a folder that is not to be changed: the photographs, a dataset of them, and a cache of that."""
    url = f"{remote.BUCKET}/kept"
    with pytest.MonkeyPatch.context() as patch:
        for key, value in running_server.environment().items():
            patch.setenv(key, value)
        for photo in sorted(photo_folder.glob("*/*.jpg")):
            running_server.put("bucket", f"kept/photos/{photo.relative_to(photo_folder)}", photo.read_bytes())
        tpufeed.shard(f"{url}/photos", f"{url}/dataset", shard_bytes="30KB", workers=1)
        cache.warmup(f"{url}/dataset", f"{url}/cache", **remote.WARM)
    return url


@pytest.fixture
def upload(server):
    """`upload(folder, name)`: the URL of a copy in the bucket of a local folder, as gsutil cp makes it."""

    def put(folder, name):
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                server.put("bucket", f"{name}/{path.relative_to(folder)}", path.read_bytes())
        return f"{remote.BUCKET}/{name}"

    return put


@pytest.fixture
def command():
    """`command(*words)`: the command line in this process, whose patience it has: exit code and what was said."""
    logger = logging.getLogger("tpufeed")
    level = logger.level
    yield lambda *words: CliRunner().invoke(app, list(map(str, words)))
    logger.setLevel(level)


_HOOK_OF_STORES = """
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.gcs_requests import Patience

GcsStore.__init__.__defaults__ = ({patience!r},)
"""


@pytest.fixture
def real_command(tmp_path, server):
    """`real_command(*words, patience, hook)`: the command in processes of its own, which run `hook` first."""

    def go(*words, patience=remote.QUICK, hook=""):
        folder = tmp_path / f"stores-{len(list(tmp_path.glob('stores-*')))}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_HOOK_OF_STORES.format(patience=patience) + hook)
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [TPUFEED, *map(str, words)],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return go
