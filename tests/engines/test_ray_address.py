"""Addresses at which there is no Ray cluster."""

import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.engines.contract import ROOT, job
from tpufeed.cli.app import app
from tpufeed.engines.ray import RayEngine
from tpufeed.errors import OptionError, install_command

pytestmark = pytest.mark.uses("ray")


def refusal(address, tmp_path):
    with pytest.raises(OptionError) as caught:
        list(RayEngine(address).run(job("note", tmp_path), [0]))
    with pytest.raises(OptionError), RayEngine(address).prepare("tests.engines.engine_tasks:note"):
        pass
    return str(caught.value)


def test_a_port_where_nobody_listens(tmp_path):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        said = refusal(f"127.0.0.1:{bound.getsockname()[1]}", tmp_path)
    assert "no Ray cluster answers at 127.0.0.1:" in said
    assert "ray start --head" in said


def test_an_address_in_the_environment(tmp_path, monkeypatch):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert f"no Ray cluster answers at auto (127.0.0.1:{port})" in refusal("auto", tmp_path)


@pytest.mark.parametrize("address", ["", "somewhere", "host:", "host:port"])
def test_what_is_no_address(address, tmp_path):
    assert f"--ray-address {address!r} is not an address" in refusal(address, tmp_path)


def test_the_command_says_so_before_it_changes_anything(tmp_path):
    (tmp_path / "photos").mkdir()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        words = ["--engine", "ray", "--ray-address", f"127.0.0.1:{bound.getsockname()[1]}"]
        done = CliRunner().invoke(app, ["shard", str(tmp_path / "photos"), str(tmp_path / "d"), *words])
    assert done.exit_code == 2
    assert done.output.startswith("error: no Ray cluster answers at")
    assert not (tmp_path / "d").exists()


def test_without_ray_the_extra_is_named(tmp_path):
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "from tpufeed.cli.app import app\n"
        f"app(['shard', {str(tmp_path)!r}, {f'{tmp_path}-d'!r}, '--engine', 'ray'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (2, f"error: ray is not installed: {install_command('ray')}\n")
