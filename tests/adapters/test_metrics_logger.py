"""MetricsLogger: figures of the window, each target, callbacks of trainers, counters for Prometheus."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import tpufeed
from tests.frameworks import lazy
from tests.gcs_server import GcsServer
from tests.repo.docs.pages import blocks, ran
from tpufeed.errors import OptionError

torch = lazy("torch")

RUNS = {"metrics.md": ""}

pytestmark = pytest.mark.xdist_group("frameworks")  # RUNS wants them in one process

DOCS = Path(__file__).parents[2] / "docs"
NAMES = {"images_per_second", "wait_ms", "idle_percent", "read_mb_per_second", "bad_records", "bad_shards"}


def train(url, to, steps=7, make=tpufeed.Loader, **options):
    loader = make(url, batch_size=7, processes=0, repeat=True, **options.pop("given", {}))
    logger = tpufeed.MetricsLogger(loader, to, **{"every_steps": 3} | options)
    for _, _batch in zip(range(steps), loader, strict=False):
        logger.step()
    loader.close()
    return logger


@pytest.fixture
def clock(monkeypatch):
    """The seconds that MetricsLogger takes for the time, in a list of one."""
    now = [0.0]
    monkeypatch.setattr("tpufeed.adapters.metrics_logger.perf_counter", lambda: now[0])
    return now


def test_figures_are_of_the_steps_since_the_last_report(cache_url, clock):
    seen = []
    loader = tpufeed.Loader(cache_url, batch_size=7, processes=0, repeat=True)
    logger = tpufeed.MetricsLogger(loader, lambda figures, step: seen.append((step, figures)), every_steps=2)
    for number, _batch in zip(range(5), loader, strict=False):
        logger.step()
        clock[0] += 0.2 if number < 2 else 0.01
    loader.close()
    (first, slow), (second, fast) = seen
    assert (first, second) == (3, 5)
    assert set(slow) == {f"tpufeed/{name}" for name in NAMES}
    rates = [figures["tpufeed/images_per_second"] for figures in (slow, fast)]
    assert rates == pytest.approx([2 * 7 / 0.4, 2 * 7 / 0.02])
    assert 0 <= slow["tpufeed/idle_percent"] <= 100
    bytes_read = loader.stats().read_bytes / 5 * 2
    assert slow["tpufeed/read_mb_per_second"] == pytest.approx(bytes_read / 1e6 / 0.4, rel=0.01)
    assert logger.report() == fast  # no step since then: the last report, which is logged once
    assert len(seen) == 2
    assert tpufeed.MetricsLogger(loader, print).report() == {}


@pytest.mark.all
@pytest.mark.uses("torch")
def test_each_tracker_is_called_as_it_is_used_to(cache_url, tmp_path, monkeypatch):
    import mlflow  # here, as each worker of pytest-xdist imports all modules of tests, and these take long
    import wandb
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlflow")
    writer = SummaryWriter(tmp_path / "torch")
    run = wandb.init(project="tpufeed", dir=tmp_path)
    sent = []
    with mlflow.start_run() as active:
        train(cache_url, [writer, run, mlflow, lambda figures, step: sent.append((step, figures))])
    writer.close()
    assert [step for step, _ in sent] == [4, 7]
    expected = [figures["tpufeed/images_per_second"] for _, figures in sent]
    assert run.summary["tpufeed/images_per_second"] == expected[-1]
    assert run.summary["tpufeed/step"] == 7
    run.finish()
    history = mlflow.MlflowClient().get_metric_history(active.info.run_id, "tpufeed/images_per_second")
    assert [(each.step, each.value) for each in history] == list(zip([4, 7], expected, strict=True))
    events = EventAccumulator(str(tmp_path / "torch")).Reload().Scalars("tpufeed/images_per_second")
    assert [each.step for each in events] == [4, 7]
    np.testing.assert_allclose([each.value for each in events], expected, rtol=1e-6)


def test_a_tracker_that_fails_is_named_once_and_the_others_go_on(cache_url, caplog):
    steps = []

    def fail(figures, step):
        raise ConnectionError("no route to the tracker")

    train(cache_url, [fail, lambda _, step: steps.append(step)])
    assert steps == [4, 7]
    assert caplog.text.count("no route to the tracker") == 1


def test_figures_begin_again_if_steps_go_back(cache_url):
    found = []
    loader = tpufeed.Loader(cache_url, batch_size=7, processes=0, repeat=True)
    logger = tpufeed.MetricsLogger(loader, lambda _, step: found.append(step), every_steps=2)
    for step, _batch in zip([101, 102, 103, 104, 11, 12, 13, 14], loader, strict=False):
        logger.step(step)
    loader.close()
    assert found == [103, 13]


def test_only_rank_0_reports_unless_all_are_asked_for(cache_url):
    steps = []
    for rank, all_ranks in ((1, False), (0, False), (1, True)):
        train(cache_url, lambda _, step: steps.append(step), given={"world": (rank, 2)}, all_ranks=all_ranks)
    assert steps == [4, 7] * 2
    loader = tpufeed.Loader(cache_url, batch_size=7, processes=0, world=(1, 2))
    logger = tpufeed.MetricsLogger(tpufeed.StepClock()(loader), lambda _, step: steps.append(step), every_steps=1)
    for _batch in loader:
        logger.step()
    assert len(steps) == 4, "rank 1 is found behind a step clock, too"


def test_loaders_for_devices_and_mixtures_are_taken(cache_url, dataset_url):
    seen = []
    for adapter, own in (("to_device", ["cpu"]), ("to_jax", []), ("to_tf", []), ("to_keras", [])):
        loader = tpufeed.Loader(cache_url, batch_size=8, processes=0)
        feed = getattr(loader, adapter)(*own)
        logger = tpufeed.MetricsLogger(
            feed if hasattr(feed, "stats") else loader, lambda figures, _: seen.append(figures), every_steps=1
        )
        for _batch in feed:
            logger.step()
    assert len(seen) == 4 * 7
    assert all(figures.keys() == seen[0].keys() for figures in seen)
    assert all(figures["tpufeed/wait_ms"] >= 0 for figures in seen)


@pytest.mark.all
def test_local_percent_is_that_of_remote_datasets(cache_url, tmp_path, monkeypatch):
    found = []
    with GcsServer(process=True, md5=False) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        for path in Path(cache_url).rglob("*"):
            if path.is_file():
                server.put("bucket", f"cache/{path.relative_to(cache_url)}", path.read_bytes())
        for local_bytes in (0, "1GB"):
            given = {"local_bytes": local_bytes, "local_dir": tmp_path, "processes": 0}
            with tpufeed.Loader("gs://bucket/cache", batch_size=7, **given) as loader:
                logger = tpufeed.MetricsLogger(loader, lambda *_: None, every_steps=1000)
                for _ in range(4):
                    for _batch in loader:
                        logger.step()
                requested = loader.stats().requested_records
                found.append((requested, logger.report()["tpufeed/local_percent"]))
    (all_requested, none_copied), (few_requested, copied) = found
    assert all_requested == 4 * 70
    assert none_copied < 10  # those of batches that were prepared ahead of the first report count before it
    assert few_requested <= 140
    assert copied > 45


def test_prometheus_reads_counters_and_the_dashboard_has_their_names(cache_url):
    registry = CollectorRegistry()
    logger = train(cache_url, registry)
    text = generate_latest(registry).decode()
    values = dict(re.findall(r"^(tpufeed_\w+) (\S+)$", text, re.MULTILINE))
    assert float(values["tpufeed_samples_total"]) == 7 * float(values["tpufeed_batches_total"]) >= 49
    assert float(values["tpufeed_read_bytes_total"]) > 0
    dashboard = (DOCS / "grafana.json").read_text()
    assert json.loads(dashboard)["panels"]
    assert set(re.findall(r"tpufeed_\w+", dashboard)) == set(values)
    assert logger.report()["tpufeed/images_per_second"] > 0


def test_a_registry_has_one_loader_at_a_time_and_does_not_keep_it(cache_url):
    registry = CollectorRegistry(auto_describe=True)
    for _ in range(2):  # a cell of a notebook that is run again
        loader = None
        loader = tpufeed.Loader(cache_url, batch_size=7, processes=0)
        tpufeed.MetricsLogger(loader, registry)
        assert "tpufeed_samples_total 0.0" in generate_latest(registry).decode()
    with pytest.raises(OptionError, match="in use"):
        tpufeed.MetricsLogger(tpufeed.Loader(cache_url, batch_size=7), registry)
    del loader
    assert "tpufeed_samples_total" not in generate_latest(registry).decode()


@pytest.mark.parametrize("to", [None, "runs", 7, dict])
def test_what_is_no_target_is_refused(cache_url, to):
    with (
        tpufeed.Loader(cache_url, batch_size=7) as loader,
        pytest.raises(OptionError, match="SummaryWriter"),
    ):
        tpufeed.MetricsLogger(loader, to)


@pytest.mark.uses("tensorflow", "torch")
def test_what_has_no_stats_is_refused(cache_url):
    with pytest.raises(OptionError, match="stats"):
        tpufeed.MetricsLogger(torch.utils.data.DataLoader([1]), print)
    loader = tpufeed.Loader(cache_url, batch_size=7)
    loader.to_tf(direct=True)
    with pytest.raises(OptionError, match="direct=True"):  # at once, not after the first step
        tpufeed.MetricsLogger(loader, print)
    with tpufeed.Loader(cache_url, batch_size=7) as loader, pytest.raises(OptionError, match="every_steps"):
        tpufeed.MetricsLogger(loader, print, every_steps=0)


def programs_of_the_page():
    """Its first and its last program, and those of trainers and trackers between them."""
    first, *between, last = blocks("metrics.md")
    return [first, last], between


def test_the_page_runs(cache_url, tmp_path, monkeypatch, capsys):
    programs, _ = programs_of_the_page()
    monkeypatch.chdir(tmp_path)
    Path("flowers-224").symlink_to(cache_url)
    program = "\n".join(programs).replace("9400", "0")
    scope = {}
    exec(compile(program, "metrics.md", "exec"), scope)
    ran(*programs)
    scope["loader"].close()
    *steps, last = capsys.readouterr().out.splitlines()
    assert [int(line.partition(" ")[0]) for line in steps] == [3, 5, 7, 8]  # of 70 // 8; the last by report()
    assert ast.literal_eval(last)["tpufeed/images_per_second"] > 0


@pytest.mark.all
@pytest.mark.uses("keras", "tensorflow", "torch")
@pytest.mark.usefixtures("lightning_without_xla")
def test_the_page_of_trainers_and_trackers(cache_url, tmp_path, monkeypatch):
    # Else transformers and accelerate import torch_xla, which aborts the process after the tensorflow of other tests.
    monkeypatch.setenv("USE_TORCH_XLA", "0")
    monkeypatch.setattr("transformers.utils.import_utils.USE_TORCH_XLA", "0")  # it may have been read already
    import keras
    import lightning.pytorch as pl
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, number):
            return self.layer(batch[0].float().mean((1, 2))).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    monkeypatch.chdir(tmp_path)
    _, programs = programs_of_the_page()
    scope, found = {}, []
    for program in programs:
        exec(compile(program, "metrics.md", "exec"), scope)
    ran(*programs)

    def logged(loader):
        found.clear()
        targets = [scope["write_summary"], lambda _, step: found.append(step)]
        scope["logger"] = tpufeed.MetricsLogger(loader, targets, every_steps=4)
        return loader

    feed = logged(tpufeed.Loader(cache_url, batch_size=7)).to_keras()
    inputs = keras.Input((64, 64, 3))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(inputs)))
    model.compile("sgd", "mse")
    model.fit(feed, epochs=2, verbose=0, callbacks=[scope["callback"]])
    assert found == [5, 9, 13, 17]
    # For the logs of this hook Keras would wait for the device after each step.
    assert type(scope["callback"]).on_train_batch_end is keras.callbacks.Callback.on_train_batch_end

    loader = tpufeed.Loader(cache_url, batch_size=7, processes=0).to_torch()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(max_steps=9, enable_checkpointing=False, callbacks=[scope["StepOfLightning"]()], **quiet)
    trainer.fit(Module(), logged(loader))
    assert found == [5, 9]

    handler = CallbackHandler([scope["StepOfTrainer"]()], Module(), None, None, None)
    for number, _batch in enumerate(logged(loader)):
        handler.on_step_end(None, TrainerState(global_step=100 + number), TrainerControl())
    assert found == [104, 108]

    scope["writer"].close()
    events = EventAccumulator("runs/flowers").Reload()
    assert events.Tags()["tensors"].count("tpufeed/wait_ms") == 1
    assert {each.step for each in events.Tensors("tpufeed/wait_ms")} == {5, 9, 13, 17, 104, 108}
