"""A destination that is full, too small or read-only, and a source that changes while it is built."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tpufeed
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetNotFoundError

KILL = "kill_group()"


class Disk:
    """A disk of 8 MB that only commands started with `before` see at `folder`; this process sees it at `seen`."""

    full = r"No space left on device\. It has room for 0\.0 MB and [\d,]+ files\. Make room .*"
    read_only = "Read-only file system"

    def __init__(self, folder):
        folder.mkdir()
        mount = f"mount -t tmpfs -o size=8m,mode=777 none {folder} && echo mounted && read line"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.mounted = self._holder.stdout.readline() == b"mounted\n"
        enter = ["nsenter", "--target", str(self._holder.pid), "--user", "--mount", "--preserve-credentials"]
        self.before = [*enter, "--wd=."]
        self.folder = folder / "d"
        self.seen = Path(f"/proc/{self._holder.pid}/root{folder}/d")
        self.fill = f"fill({str(folder)!r})"

    def make_room(self):
        (self.seen.parent / "filler").unlink()

    def make_read_only(self):
        command = [*self.before, "mount", "-o", "remount,ro", self.folder.parent]
        subprocess.run(command, check=True)

    def close(self):
        self._holder.communicate()


class LimitedFiles:
    """Used if nobody may mount: a limit on the length of files, and /sys, which refuses folders."""

    full = "File too large"
    read_only = "Operation not permitted|Permission denied|Read-only file system"

    def __init__(self, folder):
        folder.mkdir()
        self.before = ()
        self.folder = self.seen = folder / "d"
        self.fill = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400, -1))"

    def make_room(self):
        pass

    def make_read_only(self):
        self.folder = self.seen = Path("/sys/tpufeed")

    def close(self):
        pass


@pytest.fixture(params=[Disk, pytest.param(LimitedFiles, marks=pytest.mark.long)], ids=["disk", "limit"])
def disk(request, tmp_path):
    """A disk that gets full; if nobody may mount one, files of limited length."""
    found = request.param(tmp_path / "disk")
    if request.param is Disk and not found.mounted:
        found.close()
        found = LimitedFiles(tmp_path / "files")
    yield found
    found.close()


@pytest.mark.all
@pytest.mark.parametrize(
    ("moment", "name"),
    [
        pytest.param(("open", "/plan$"), r"tmp/\w+/plan", marks=pytest.mark.long),
        (("os.link", "/reports/", 5, "worker"), r"(train|val)-\d{5}-of-\d{5}\.tfrecord: .*/(shard-0|\d{6}\.json)"),
        (("os.link", "/val.index.npy$"), r"manifest\.json"),
    ],
    ids=["plan", "shard", "manifest"],
)
def test_the_disk_fills_up(moment, name, disk, command, is_whole):
    event, match, *nth_and_place = moment
    filled = command()
    filled.order(event, match, disk.fill, *nth_and_place)
    done = filled.run(disk.folder, "--workers", 2 if "worker" in nth_and_place else 1, before=disk.before)
    assert filled.fired() == 1
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"error: .*{name}: {disk.full}\n", done.stderr), done.stderr
    with pytest.raises(DatasetNotFoundError):
        open_dataset(disk.seen)
    disk.make_room()
    done = command().run(disk.folder, "--workers", 1, before=disk.before)
    assert done.returncode == 0, done.stderr
    assert is_whole(disk.seen)


def test_a_disk_that_is_too_small_is_refused_before_the_start(command, tmp_path):
    """Files that are mostly holes, a quarter more of them than there is room."""
    (tmp_path / "photos/cat").mkdir(parents=True)
    free = shutil.disk_usage(tmp_path).free
    for number in range(5):
        with (tmp_path / f"photos/cat/{number}.jpg").open("wb") as file:
            file.truncate(free // 4)
    done = command(tmp_path / "photos", ["--shards", 5]).run_here(tmp_path / "d")
    assert (done.returncode, done.stdout) == (1, "")
    said = re.match(rf"error: {tmp_path}/d .*?([\d,.]+) MB.*?([\d,.]+) MB", done.stderr)
    room, wanted = (float(figure.replace(",", "")) for figure in said.groups())
    assert wanted == pytest.approx(free * 1.25e-6, rel=0.01)
    assert room == pytest.approx(free * 1e-6, rel=0.05)
    assert not (tmp_path / "d").exists()


@pytest.mark.all
@pytest.mark.parametrize("state", ["killed", pytest.param("empty", marks=pytest.mark.long)])
def test_a_destination_that_is_read_only(state, disk, command):
    if state == "killed":
        killed = command()
        killed.order("os.link", "/reports/", KILL, nth=9)
        killed.start(disk.folder, "--workers", 1, before=disk.before).communicate()
        assert killed.fired() == 1
    disk.make_read_only()
    before = {path: path.stat() for path in disk.seen.rglob("*")}
    done = command().run(disk.folder, before=disk.before)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"error: .*{disk.folder}/.*: ({disk.read_only})\n", done.stderr), done.stderr
    assert {path: path.stat() for path in disk.seen.rglob("*")} == before
    with pytest.raises(DatasetNotFoundError):
        open_dataset(disk.seen)


@pytest.mark.all
def test_a_finished_dataset_that_is_read_only_is_complete(disk, command):
    done = command().run(disk.folder, "--workers", 1, before=disk.before)
    assert done.returncode == 0, done.stderr
    if isinstance(disk, Disk):
        disk.make_read_only()
    done = command().run(disk.folder, before=disk.before)
    assert (done.returncode, done.stderr) == (0, "")
    assert "complete already" in done.stdout


CHANGES = {
    "grown": ("open(victim, 'ab').write(b'more')", "mtime differs"),
    "truncated": ("os.truncate(victim, 5000)", "mtime differs"),
    "deleted": ("os.unlink(victim)", "the file is gone"),
    "replaced": ("shutil.copyfile(victim, victim + '~'); os.replace(victim + '~', victim)", "mtime differs"),
    "overwritten": ("open(victim, 'r+b').write(b'xx')", "mtime differs"),
}


@pytest.mark.all
def test_files_that_change_during_the_build(command, photo_folder, tmp_path):
    source, folder = tmp_path / "photos", tmp_path / "d"
    shutil.copytree(photo_folder, source)
    victims = dict(zip(CHANGES, sorted(source.glob("*/*.jpg"))[::17], strict=False))
    changed = command(source)
    for change, victim in victims.items():
        changed.order("open", f"^{victim}$", f"import shutil; victim = {str(victim)!r}; {CHANGES[change][0]}")
    done = changed.run(folder, "--workers", 1)
    assert [changed.fired(number) for number in range(5)] == [1] * 5
    assert done.returncode == 0, done.stderr
    rejects = {line["path"]: line for line in map(json.loads, (folder / "rejects.jsonl").read_text().splitlines())}
    assert len(rejects) == 5
    for change, victim in victims.items():
        reject = rejects[str(victim.relative_to(source))]
        assert reject["reason"] == "changed_during_build"
        assert CHANGES[change][1] in reject["message"]
    assert open_dataset(folder).manifest.rejects == {"changed_during_build": 5}
    assert tpufeed.verify(folder).records == 85
    assert "rejected: 5 images (5 changed_during_build)" in done.stdout
