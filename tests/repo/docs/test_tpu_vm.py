"""docs/tpu-vm.md is typed from its first line to its last, with a stand-in for gcloud (gcloud.py) and no network.

What it creates it deletes: at the end the stand-in has neither VM nor bucket nor account.
"""

import functools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gcs_server import GcsServer
from tests.quick_xla import QUICK
from tests.repo.docs.environments import build_wheel, make_image
from tests.repo.docs.gcloud import FLAGS
from tests.repo.docs.pages import ROOT, SHORT, blocks, make_photos, run_program, text_of

RUNS = {"scaleout.md": "RayEngine"}

PAGE = text_of("tpu-vm.md")
LOOK = 'vm --command="tail -n 3 train.log"'
# One looks when the training is through.
LOOK_LATER = (
    "timeout 300 grep -q '^epoch 10 of 10' <(tail --pid=$$ -s 0.2 -F -n +1 ../state/vms/*/train.log 2>/dev/null)\n"
    + LOOK
)
QUEUE = r"queued-resources (create|describe|delete)"
# What takes a TPU, or long.
HERE = {
    LOOK: LOOK_LATER,
    "JAX_PLATFORMS=tpu": "JAX_PLATFORMS=cpu",
    "gs://$BUCKET 1024": "gs://$BUCKET 16",
    " --batch 1024": "",
    **{f"tpufeed {name} ": f"tpufeed {name} {' '.join(short)} " for name, short in SHORT.items()},
}
# `ray stop` ends every Ray of a machine: this one ends what runs below the test's folder.
RAY = """#!{python}
import psutil
from ray.scripts import scripts

every = psutil.process_iter
psutil.process_iter = lambda *given: (each for each in every(*given) if "{folder}" in str(each.info["cmdline"]))
scripts.main()
"""


def lines(skipped: str, page: str = PAGE) -> Iterator[str]:
    """Yield what the page has one type, but for the lines in which the pattern occurs."""
    for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            if not re.search(skipped, line):
                yield functools.reduce(lambda text, pair: text.replace(*pair), HERE.items(), f"{line}\n")


class Machine:
    """One's own machine: a folder to work in, and gcloud on PATH."""

    def __init__(self, folder: Path, server: GcsServer, wheels: Path) -> None:
        self.home, self.state, self.server, self.wheels = folder / "home", folder / "state", server, wheels
        (folder / "bin").mkdir()
        self.home.mkdir()
        self.state.mkdir()
        image, index = make_image(folder)
        vm = {"PATH": f"{image}:/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
        vm |= {"TPUFEED_LOCAL_DIR": str(folder), "TPUFEED_PROCESSES": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
        vm |= {"XLA_FLAGS": QUICK}
        program = folder / "bin/gcloud"
        stand_in = f"{sys.executable} {ROOT}/tests/repo/docs/gcloud.py {self.state} {server.url}"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {stand_in} "$@"\n')
        program.chmod(0o755)
        self.environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(self.home), "VM": json.dumps(vm)}

    def bring(self, photos: int) -> None:
        """Put the wheel, the training and photographs into the folder that one works in."""
        (wheel,) = self.wheels.glob("*.whl")
        shutil.copy(wheel, self.home)
        shutil.copy(ROOT / "examples/tpu_vm/train.py", self.home)
        make_photos(self.home, photos, "160x120")

    def type(self, text: str) -> str:
        """Type into a shell that ends with the first command that fails; returns what was printed."""
        # Through a pipe, of which bash reads a line at a time: a shell on the VM reads on where the outer one stopped.
        printed = self.home.parent / "printed"
        with printed.open("w") as output:
            code = subprocess.run(
                ["bash", "-e"],
                cwd=self.home,
                env=self.environment,
                input=text.encode(),
                stdout=output,
                stderr=output,
                check=False,
            ).returncode
        assert code == 0, printed.read_text()[-6000:]
        return printed.read_text()

    def left(self) -> list[str]:
        """What still costs money."""
        kinds = ("vms", "queued", "accounts")
        names = [name for kind in kinds if (self.state / kind).exists() for name in os.listdir(self.state / kind)]
        return [name for name in names if not name.endswith(".json")] + self.server.names("my-project-flowers")


@pytest.fixture
def machine(once: Callable[..., Path], tmp_path: Path) -> Iterator[Machine]:
    with GcsServer([], process=True) as server:
        yield Machine(tmp_path, server, once(build_wheel))


def test_from_the_first_line_to_the_last(machine: Machine) -> None:
    machine.bring(60)
    printed = machine.type("".join(lines(QUEUE)))
    last = re.findall(r"^epoch 10 of 10: loss (\d+\.\d+), \d+ of val right$", printed, re.MULTILINE)[-1]
    assert float(last) < math.log(5)  # better than chance, in a process that outlived its connection
    assert "<svg" in (machine.home / "doctor.html").read_text()
    assert not machine.left()


def test_a_queued_vm(machine: Machine) -> None:
    make_photos(machine.home, 5, "32x24")
    others = r"tpu-vm (create|delete|scp) |^vm( |$)|^exit$|^source |^tpufeed "
    text = "".join(lines(others))
    reached = 'vm --command="pwd"\n'
    first, last, rest = text.partition("gcloud storage rm")
    printed = machine.type(first + reached + last + rest)
    assert "state: ACTIVE" in printed
    assert f"{machine.state}/vms/my-tpu" in printed
    assert not machine.left()


def test_no_verb_is_known_that_the_page_does_not_use() -> None:
    used = re.findall(r"gcloud ([^`\n]*)", PAGE)
    assert [verb for verb in FLAGS if not any(line.startswith(verb) for line in used)] == []


def pod_lines() -> str:
    """The lines for a pod of the page on many hosts."""
    (block,) = (block for block in blocks("scaleout.md", "bash") if "tpu-vm ssh" in block)
    return block


def test_the_page_on_many_hosts_uses_the_same_environment() -> None:
    programs = re.findall(r'^(?:all|first) "(?:pgrep raylet \|\| )?(?:nohup )?(\S+) ', pod_lines(), re.MULTILINE)
    assert {Path(program).name for program in programs} == {"pip", "ray", "tpufeed"}
    assert {Path(program).parent for program in programs} == {Path("~/env/bin")}
    assert set(re.findall(r"\$([A-Z_]+)", pod_lines())) <= set(re.findall(r"^export (\w+)=", PAGE, re.MULTILINE))


def test_the_program_of_the_page_on_many_hosts_runs(tmp_path: Path) -> None:
    run_program("".join(blocks("scaleout.md")), tmp_path)


@pytest.mark.long
def test_a_pod_builds_a_cache_with_ray(machine: Machine) -> None:
    """The pod has one host here; Ray itself is real."""
    machine.bring(20)
    built, _, rest = PAGE.partition("## 7. ")
    program = machine.state / "vms/my-tpu/env/bin/ray"  # pip finds Ray installed, and writes none
    printed = machine.type(
        "".join(lines(rf"{QUEUE}|cache warmup|verify", built))
        + f"cat > {program} <<'END'\n{RAY.format(folder=machine.home.parent, python=program.parent / 'python')}END\n"
        + f"chmod +x {program}\n"
        + pod_lines().replace("HOST0", "127.0.0.1")
        + "".join(lines(QUEUE, rest[rest.index("## 9. ") :]))
    )
    assert "Ray runtime started" in printed
    assert "stored: 20 raw, augmented" in printed
    assert re.search(r"Stopped all \d+ Ray processes", printed)
    assert not machine.left()


def test_names_agree() -> None:
    names = dict(re.findall(r"^export (\w+)=(.*)$", PAGE, re.MULTILINE))
    assert PAGE.count(f"export BUCKET={names['BUCKET']}\n") == PAGE.count("export BUCKET=") == 3
    assert f"`{names['ACCELERATOR_TYPE']}` | `{names['RUNTIME_VERSION']}`" in PAGE
    assert all(name in PAGE for name in re.findall(r"--tpu (\S+)", PAGE))
