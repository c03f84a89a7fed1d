"""A stand-in for gcloud: `python gcloud.py STATE URL ARGUMENT ...`. It knows what docs/tpu-vm.md uses.

STATE is a folder: a file in `accounts` is a service account, in `grants` a role that one has, in `queued` a request; a
folder in `vms` is the home of a VM. URL leads to the tests' server, which has the buckets. A VM has a shell, `python3`
and the network; it reaches buckets if its account may and its scope lets it.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gcs_server import GcsServer

# By group and verb, from gcloud's reference (cloud.google.com/sdk/gcloud/reference): all flags that the page may use.
FLAGS = {
    "config set": (),
    "services enable": (),
    "compute tpus locations list": (),
    "compute tpus tpu-vm accelerator-types list": ("zone",),
    "compute tpus tpu-vm versions list": ("zone",),
    "compute tpus tpu-vm create": ("zone", "accelerator-type", "version", "service-account", "scopes", "spot"),
    "compute tpus tpu-vm ssh": ("zone", "worker", "command"),
    "compute tpus tpu-vm scp": ("zone", "worker"),
    "compute tpus tpu-vm delete": ("zone",),
    "compute tpus tpu-vm list": ("zone",),
    "compute tpus queued-resources create": (
        *("node-id", "zone", "accelerator-type", "runtime-version", "service-account", "scopes", "spot"),
    ),
    "compute tpus queued-resources describe": ("zone",),
    "compute tpus queued-resources delete": ("zone", "force"),
    "compute tpus queued-resources list": ("zone",),
    "storage buckets create": ("location", "uniform-bucket-level-access", "soft-delete-duration"),
    "storage buckets add-iam-policy-binding": ("member", "role"),
    "storage cp": ("recursive",),
    "storage rm": ("recursive",),
    "iam service-accounts create": ("display-name",),
    "iam service-accounts delete": (),
}
SWITCHES = {"spot", "force", "recursive", "uniform-bucket-level-access"}
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class Gcloud:
    """One call of gcloud."""

    def __init__(self, state: Path, url: str, words: list[str]) -> None:
        self.state, self.url = state, url
        (self.verb,) = (verb for verb in FLAGS if words[: len(verb.split())] == verb.split())
        parser = argparse.ArgumentParser(self.verb, allow_abbrev=False)
        for flag in FLAGS[self.verb]:
            parser.add_argument(f"--{flag}", **({"action": "store_true"} if flag in SWITCHES else {}))
        given, self.names = parser.parse_known_args(words[len(self.verb.split()) :])
        self.given = vars(given)
        assert not [name for name in self.names if not name or name.startswith("--")], f"no such flag: {self.names}"
        assert self.given.get("zone", "zone"), f"{self.verb} needs --zone"

    @property
    def server(self) -> "GcsServer":
        from tests.gcs_server import GcsServer  # takes half a second, and half of the calls need none

        return GcsServer.attach(self.url)

    def run(self) -> int:  # noqa: PLR0912, a branch a verb
        project = self.state / "project"
        if self.verb != "config set":
            assert project.exists(), "no project is set"
        match self.verb:
            case "config set":
                assert self.names[0] == "project"
                project.write_text(self.names[1])
            case "services enable":
                for name in self.names:
                    self._note("services", name)
            case "iam service-accounts create":
                self._note("accounts", f"{self.names[0]}@{project.read_text()}.iam.gserviceaccount.com")
            case "iam service-accounts delete":
                self._remove("accounts", self.names[0])
            case "storage buckets create":
                assert self.given["location"] == self._region(os.environ["ZONE"]), "not in the region of the VM"
                self.server.create_bucket(self.names[0].removeprefix("gs://"))
            case "storage buckets add-iam-policy-binding":
                kind, _, account = self.given["member"].partition(":")
                assert kind == "serviceAccount"
                assert account in self._all("accounts"), f"there is no account {account}"
                self._note("grants", f"{account} {self.given['role'].replace('/', ' ')}")
            case "storage cp":
                self._upload(Path(self.names[0]), self.names[1].removeprefix("gs://").rstrip("/"))
            case "storage rm":
                bucket = self.names[0].removeprefix("gs://")
                for name in self.server.names(bucket):
                    self.server.remove(bucket, name)
            case "compute tpus tpu-vm create":
                self._create(self.names[0], self.given["version"])
            case "compute tpus queued-resources create":
                self._note("queued", self.names[0], self.given["node_id"])
                self._create(self.given["node_id"], self.given["runtime_version"])
            case "compute tpus queued-resources describe":
                assert self.names[0] in self._all("queued")
                print("state: ACTIVE")
            case "compute tpus queued-resources delete":
                shutil.rmtree(self._home((self.state / "queued" / self.names[0]).read_text()))
                self._remove("queued", self.names[0])
            case "compute tpus tpu-vm delete":
                shutil.rmtree(self._home(self.names[0]))
            case "compute tpus tpu-vm scp":
                self._copy()
            case "compute tpus tpu-vm ssh":
                return self._connect()
            case _:  # lists
                print(*self._all("vms"))
        return 0

    def _create(self, name: str, version: str) -> None:
        assert "tpu.googleapis.com" in self._all("services"), "the service of TPUs is not enabled"
        assert self.given["accelerator_type"]
        assert version
        assert self.given["service_account"] in self._all("accounts"), "there is no such account"
        home = self.state / "vms" / name
        home.mkdir(parents=True)  # fails if there is one
        about = {key: self.given[key] for key in ("zone", "service_account", "scopes")}
        (self.state / "vms" / f"{name}.json").write_text(json.dumps(about))

    def _home(self, name: str) -> Path:
        home = self.state / "vms" / name
        assert home.is_dir(), f"there is no VM {name}"
        assert self._about(name)["zone"] == self.given["zone"], f"{name} is in another zone"
        return home

    def _about(self, name: str) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.state / "vms" / f"{name}.json").read_text())
        return found

    def _connect(self) -> int:
        """Run the command, or the lines of standard input, in a session of its own, which hangs up at its end."""
        home, about = self._home(self.names[0]), self._about(self.names[0])
        variables = json.loads(os.environ["VM"]) | {"HOME": str(home)}
        if f"{about['service_account']} roles storage.objectUser" in self._all("grants") and about["scopes"] == SCOPE:
            variables |= self.server.environment()
        command = self.given["command"]
        shell = ["bash", "-e", *(["-c", command] if command else ["-s"])]
        given = subprocess.DEVNULL if command else None
        with subprocess.Popen(shell, cwd=home, env=variables, stdin=given, start_new_session=True) as session:
            code = session.wait()
        while {"bash", "nohup"} & running(session.pid):  # what it left in the background has only begun
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session.pid, signal.SIGHUP)
        return code

    def _copy(self) -> None:
        *sources, target = (self._place(name) for name in self.names)
        for source in sources:
            shutil.copy(source, target)

    def _place(self, name: str) -> Path:
        vm, colon, path = name.partition(":")
        return self._home(vm) / path if colon else Path(name)

    def _upload(self, folder: Path, bucket: str) -> None:
        assert self.given["recursive"] == folder.is_dir()
        for file in folder.rglob("*.jpg"):
            self.server.put(bucket, file.relative_to(folder.parent).as_posix(), file.read_bytes())

    @staticmethod
    def _region(zone: str) -> str:
        return zone.rpartition("-")[0]

    def _all(self, kind: str) -> list[str]:
        return sorted(os.listdir(self.state / kind)) if (self.state / kind).exists() else []

    def _note(self, kind: str, name: str, content: str = "") -> None:
        (self.state / kind).mkdir(exist_ok=True)
        (self.state / kind / name).write_text(content)

    def _remove(self, kind: str, name: str) -> None:
        (self.state / kind / name).unlink()


def running(group: int) -> set[str]:
    """Return the names of the processes of a group."""
    names = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.getpgid(int(process.name)) == group:
                names.add((process / "comm").read_text().strip())
    return names


if __name__ == "__main__":
    sys.exit(Gcloud(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]).run())
