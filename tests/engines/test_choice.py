"""The choice of an engine, and the contract for the one that needs no other process."""

import pytest
from typer.testing import CliRunner

import tpufeed
from tests.engines.contract import EngineContract
from tpufeed.cli.app import app
from tpufeed.engines.choice import SerialEngine, choose_engine, make_engine
from tpufeed.engines.processes import ProcessEngine
from tpufeed.engines.ray import RayEngine
from tpufeed.errors import OptionError


@pytest.mark.parametrize(("left_mb", "workers"), [(0, 1), (511, 1), (512, 2), (1100, 4), (64_000, 6)])
def test_workers_have_room_in_memory(monkeypatch, left_mb, workers):
    monkeypatch.setattr("tpufeed.engines.choice.available_cores", lambda: 6)
    monkeypatch.setattr("tpufeed.engines.choice.memory_left", lambda: left_mb << 20)
    assert getattr(make_engine(), "workers", 1) == workers
    assert make_engine(workers=5).workers == 5


class TestSerial(EngineContract):
    @pytest.fixture
    def engine(self):
        return SerialEngine()


def test_names_of_engines(monkeypatch):
    monkeypatch.setattr("tpufeed.engines.choice.available_cores", lambda: 6)
    assert isinstance(make_engine("local", 3), ProcessEngine)
    assert isinstance(make_engine("local", 1), SerialEngine)
    monkeypatch.setattr("tpufeed.engines.choice.memory_left", lambda: None)
    assert make_engine(None).workers == 6
    assert make_engine("ray").address == "auto"
    assert make_engine("ray", ray_address="").address == ""  # a variable that is not set is no "auto"
    engine = make_engine("ray", 7, "head:6379")
    assert (engine.address, engine.workers) == ("head:6379", 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "spark"], "'spark'"),
        (["--engine", "ray", "--workers", "0"], "workers"),
        (["--ray-address", "head:6379"], "--ray-address"),
        (["--engine", "ray", "--", "--runner=DirectRunner"], "'--runner=DirectRunner'"),
        (["d2"], "'d2'"),
        (["--engine", "beam", "--workers", "2"], "Beam"),
    ],
)
@pytest.mark.parametrize("command", [["shard"], ["cache", "warmup"]])
def test_options_that_do_not_fit_together(command, words, said, tmp_path):
    done = CliRunner().invoke(app, [*command, str(tmp_path), str(tmp_path / "d"), *words])
    assert done.exit_code == 2
    assert said in done.output


def test_a_store_that_only_this_process_sees(tmp_path):
    with pytest.raises(OptionError, match="engine='ray'"):
        tpufeed.shard(tmp_path, "memory://d", engine="ray")
    with pytest.raises(OptionError, match="engine='RayEngine'"):
        tpufeed.shard(tmp_path, "memory://d", engine=RayEngine())


def test_a_number_of_workers_beside_an_engine_that_has_its_own(tmp_path):
    engine = RayEngine(workers=3)
    assert choose_engine(engine, None) is choose_engine(engine, 3) is engine
    with pytest.raises(OptionError, match="engine=RayEngine"):
        choose_engine(engine, 2)
    with pytest.raises(OptionError, match="engine=SerialEngine"):
        choose_engine(SerialEngine(), 2)


def test_the_preview_says_what_will_run_it(photo_files, tmp_path):
    (tmp_path / "photos/a").mkdir(parents=True)
    for file in photo_files[:2]:
        (tmp_path / "photos/a" / file.name).write_bytes(file.read_bytes())
    words = ["--dry-run", "--engine", "ray", "--ray-address", "head:6379"]
    done = CliRunner().invoke(app, ["shard", str(tmp_path / "photos"), str(tmp_path / "d"), *words])
    assert done.exit_code == 0
    assert "engine: the Ray cluster at 'head:6379'. Its nodes need tpufeed" in done.output
