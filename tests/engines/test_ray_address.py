"""Addresses at which there is no Ray cluster."""

import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.engines.contract import ROOT, job
from tpufeed.cli.app import app
from tpufeed.engines.choice import SerialEngine, make_engine
from tpufeed.engines.processes import ProcessEngine
from tpufeed.engines.ray import RayEngine
from tpufeed.errors import OptionError
from tpufeed.processes.limits import available_cores

pytest.importorskip("ray")


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
    assert f"--ray-address {address!r} is no address" in refusal(address, tmp_path)


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
    assert (done.returncode, done.stderr) == (2, "error: ray is not installed: pip install 'tpufeed[ray]'\n")


# The choice of an engine.


def test_names_of_engines():
    assert isinstance(make_engine("local", 3), ProcessEngine)
    assert isinstance(make_engine("local", 1), SerialEngine)
    assert make_engine(None).workers == available_cores() or isinstance(make_engine(None), SerialEngine)
    assert make_engine("ray").address == "auto"
    assert make_engine("ray", ray_address="").address == ""  # a variable that is not set is no "auto"
    engine = make_engine("ray", 7, "head:6379")
    assert (engine.address, engine.workers) == ("head:6379", 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "spark"], "there is no engine 'spark'; there are local, ray, beam"),
        (["--engine", "ray", "--workers", "0"], "workers is a whole number, at least 1, not 0"),
        (["--ray-address", "head:6379"], "--ray-address head:6379 is for --engine ray"),
        (["--engine", "ray", "--", "--runner=DirectRunner"], "'--runner=DirectRunner'; only --engine beam takes more"),
        (["d2"], "unexpected argument 'd2'"),
        (["--engine", "beam", "--workers", "2"], "Beam is told by options of its own how many workers to take"),
    ],
)
@pytest.mark.parametrize("command", [["shard"], ["cache", "warmup"]])
def test_options_that_do_not_fit_together(command, words, said, tmp_path):
    done = CliRunner().invoke(app, [*command, str(tmp_path), str(tmp_path / "d"), *words])
    assert done.exit_code == 2
    assert said in done.output


def test_a_store_that_only_this_process_sees(tmp_path):
    from tpufeed import shard

    with pytest.raises(OptionError, match=r"only this process sees memory://d, and no worker of engine='ray' does"):
        shard(tmp_path, "memory://d", engine="ray")
    with pytest.raises(OptionError, match=r"no worker of engine='RayEngine' does"):
        shard(tmp_path, "memory://d", engine=RayEngine())


def test_a_number_of_workers_beside_an_engine_that_has_its_own(tmp_path):
    from tpufeed.engines.choice import choose_engine

    engine = RayEngine(workers=3)
    assert choose_engine(engine, None) is choose_engine(engine, 3) is engine
    with pytest.raises(OptionError, match=r"^workers=2 is not for engine=RayEngine"):
        choose_engine(engine, 2)
    with pytest.raises(OptionError, match=r"^workers=2 is not for engine=SerialEngine"):
        choose_engine(SerialEngine(), 2)


def test_the_preview_says_what_will_run_it(photo_files, tmp_path):
    (tmp_path / "photos/a").mkdir(parents=True)
    for file in photo_files[:2]:
        (tmp_path / "photos/a" / file.name).write_bytes(file.read_bytes())
    words = ["--dry-run", "--engine", "ray", "--ray-address", "head:6379"]
    done = CliRunner().invoke(app, ["shard", str(tmp_path / "photos"), str(tmp_path / "d"), *words])
    assert done.exit_code == 0
    assert "engine: the Ray cluster at 'head:6379'; its nodes need tpufeed" in done.output
