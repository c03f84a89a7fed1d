"""Report how a training is fed, while it runs: to TensorBoard, Weights & Biases, MLflow, Prometheus or any function."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.loaders.device import DeviceStats
from tpufeed.loaders.loader import NumpyLoader
from tpufeed.loaders.metrics import LoaderStats
from tpufeed.loaders.options import check_count

_logger = logging.getLogger(__name__)

_Send: TypeAlias = Callable[[dict[str, float], int], object]
_STEP = "step"
# Counters of Prometheus: name, field of LoaderStats, help.
_COUNTERS = (
    ("tpufeed_batches", "batches", "Batches handed to the training loop."),
    ("tpufeed_samples", "samples", "Samples in these batches, with padding."),
    ("tpufeed_wait_seconds", "wait_seconds", "Seconds that the training loop waited for batches."),
    ("tpufeed_read_bytes", "read_bytes", "Bytes of records that were read."),
    ("tpufeed_requested_records", "requested_records", "Records read by requests, as their shards were not staged."),
    ("tpufeed_bad_records", "bad_records", "Different damaged records that were skipped."),
    ("tpufeed_read_thread_seconds", "read_seconds", "Seconds of all threads together that reading records took."),
    ("tpufeed_decode_thread_seconds", "decode_seconds", "Seconds of all threads together that decoding took."),
)


class MetricsLogger:
    """Logs figures of a loader every few steps of a training.

    Call `step()` after each step of a loop of your own; `keras()`, `lightning()` and `hugging_face()` return callbacks
    that do. Figures are of the steps since the last report, and of this process:

    - `images_per_second`: samples handed to the training loop, in a second;
    - `wait_ms`: milliseconds that a step waited for its batch;
    - `idle_percent`: share of the time in which the training loop waited for batches;
    - `read_mb_per_second`: megabytes of records that were read;
    - `staged_percent`: share of the records that came from the stage, and not by requests of their own; of remote
      datasets alone;
    - `bad_records`: different damaged records that were skipped since the loader was made.

    A loader with a `tf.data.Dataset` waits in TensorFlow's threads, which take batches ahead: there `wait_ms` and
    `idle_percent` may be more than the training waits.

    Args:
        loader: of tpufeed, or anything with `stats()` as these have.
        to: where to: a `SummaryWriter` of torch or tensorboardX, one of `tf.summary`, a run of Weights & Biases,
            `mlflow` or another object with `log_metrics(metrics, step=)`, a `CollectorRegistry` of prometheus_client,
            or a function `to(metrics, step)`; or a list of these. What fails is logged once as a warning, and the
            training goes on. A registry gets counters at once, which are read whenever it is scraped.
        every_steps: steps between two reports.
        prefix: before the names of figures, but for Prometheus, whose names begin with `tpufeed_`.
        all_ranks: have every process report; by default only rank 0 does. A registry is each process' own.

    Raises:
        OptionError: a loader without `stats()`, or a target that is none of these.
    """

    def __init__(
        self, loader: Any, to: Any, *, every_steps: int = 50, prefix: str = "tpufeed/", all_ranks: bool = False
    ) -> None:
        if not callable(getattr(loader, "stats", None)):
            raise OptionError(
                f"MetricsLogger takes a loader with stats(), such as numpy_loader returns, not {type(loader).__name__}"
            )
        check_count("every_steps", every_steps)
        self._loader, self._every, self._prefix, self._all_ranks = loader, every_steps, prefix, all_ranks
        self._host = find_host(loader)
        self._targets = [
            target for each in (to if isinstance(to, list | tuple) else [to]) for target in self._open(each)
        ]
        self._failed: set[int] = set()
        self._step = self._reported = 0
        self._last: _Point | None = None

    def step(self, number: int | None = None) -> None:
        """Count a step of the training, and report where it is time to.

        Args:
            number: of the step, where the training has numbers of its own; they may skip some.
        """
        self._step = self._step + 1 if number is None else number
        if self._last is None:
            self._last, self._reported = self._read(), self._step
        elif self._step - self._reported >= self._every:
            self.report()

    def report(self) -> dict[str, float]:
        """Report now, and return the figures with their names; none before the second step."""
        last, steps = self._last, self._step - self._reported
        if last is None or steps < 1:
            return {}
        now = self._last = self._read()
        self._reported = self._step
        figures = {self._prefix + name: value for name, value in self._compare(last, now, steps).items()}
        if self._all_ranks or self._host is None or self._host.world.rank == 0:
            for number, send in enumerate(self._targets):
                try:
                    send(figures, self._step)
                except Exception as error:  # noqa: BLE001  # no tracker may end a training
                    if number not in self._failed:
                        self._failed.add(number)
                        _logger.warning("figures of the loader could not be logged, which is said once: %r", error)
        return figures

    def keras(self) -> Any:
        """Return a callback for `fit` of Keras 3. Raises MissingExtraError."""
        try:
            import keras
        except ImportError as error:
            raise MissingExtraError("Keras", "keras") from error
        advance = self._advance

        class Callback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.done = 0

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                # Keras says the last of the steps that it executes together, which may lie behind the epoch's end.
                done = min(batch + 1, self.params["steps"] or batch + 1)
                advance(done - self.done)
                self.done = done

        return Callback()

    def lightning(self) -> Any:
        """Return a callback for Lightning's Trainer. Raises MissingExtraError."""
        try:
            from lightning import pytorch
        except ImportError as error:
            raise MissingExtraError("Lightning", "lightning") from error
        step = self.step

        class Callback(pytorch.Callback):
            def on_train_batch_end(self, *_: Any) -> None:
                step()

        return Callback()

    def hugging_face(self) -> Any:
        """Return a callback for the Trainer of Hugging Face. Raises OptionError where transformers is not installed."""
        try:
            from transformers import TrainerCallback
        except ImportError as error:
            raise OptionError(f"transformers cannot be imported: {error}; pip install transformers") from error
        step = self.step

        class Callback(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                step(state.global_step)

        return Callback()

    def _advance(self, steps: int) -> None:
        self.step(self._step + steps)

    def _open(self, to: Any) -> Iterator[_Send]:
        """Yield what sends figures to a target, or nothing where the target asks for them."""
        module = type(to).__module__.partition(".")[0]
        if hasattr(to, "register") and hasattr(to, "collect"):
            to.register(_Collector(self._loader))
        elif hasattr(to, "add_scalar"):
            yield lambda figures, step: [to.add_scalar(name, value, step) for name, value in figures.items()]
        elif hasattr(to, "as_default") and module == "tensorflow":
            yield lambda figures, step: _write_summary(to, figures, step)
        elif hasattr(to, "define_metric") and hasattr(to, "log"):
            # Steps of its own: the run's other figures may come at other steps, and its step never goes back.
            to.define_metric(f"{self._prefix}*", step_metric=self._prefix + _STEP)
            yield lambda figures, step: to.log({**figures, self._prefix + _STEP: step})
        elif hasattr(to, "log_metrics"):
            yield lambda figures, step: to.log_metrics(figures, step=step)
        elif callable(to) and not isinstance(to, type):
            yield to
        else:
            raise OptionError(
                "MetricsLogger logs to a SummaryWriter, a run of Weights & Biases, mlflow, a CollectorRegistry of "
                f"prometheus_client, or a function of (metrics, step), not to {to!r:.100}"
            )

    def _read(self) -> "_Point":
        return _Point(perf_counter(), *split_stats(self._loader.stats()))

    def _compare(self, last: "_Point", now: "_Point", steps: int) -> dict[str, float]:
        seconds, waited = now.at - last.at, now.wait_seconds - last.wait_seconds
        found = {"wait_ms": 1e3 * waited / steps, "idle_percent": min(100.0, 100 * waited / seconds)}
        if last.host is None or now.host is None:
            return found
        samples, read_bytes = now.host.samples - last.host.samples, now.host.read_bytes - last.host.read_bytes
        found |= {"images_per_second": samples / seconds, "read_mb_per_second": read_bytes / seconds / 1e6}
        found["bad_records"] = now.host.bad_records
        if samples and self._host is not None and any(source.dataset.is_remote for source in self._host.sources):
            requested = now.host.requested_records - last.host.requested_records
            found["staged_percent"] = max(0.0, 100 * (1 - requested / samples))
        return found


class _Point(NamedTuple):
    at: float
    wait_seconds: float
    host: LoaderStats | None


class _Collector:
    """Counters of a loader for prometheus_client, which calls `collect` at each scrape."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def describe(self) -> Iterable[Any]:
        """Return the counters without values: a registry asks for names when this is registered."""
        return self._counters(dict.fromkeys((field for _, field, _ in _COUNTERS), 0.0))

    def collect(self) -> Iterable[Any]:
        """Return the counters as they are now."""
        wait_seconds, host = split_stats(self._loader.stats())
        values = {} if host is None else {field: getattr(host, field) for _, field, _ in _COUNTERS}
        return self._counters(values | {"wait_seconds": wait_seconds})

    def _counters(self, values: Mapping[str, float]) -> list[Any]:
        from prometheus_client.core import CounterMetricFamily

        return [
            CounterMetricFamily(name, text, value=values[field]) for name, field, text in _COUNTERS if field in values
        ]


def split_stats(stats: Any) -> tuple[float, LoaderStats | None]:
    """Return the seconds that the training loop waited, and the stats of the loader on the host, where there is one."""
    if isinstance(stats, DeviceStats):
        return stats.wait_seconds, stats.host if isinstance(stats.host, LoaderStats) else None
    return stats.wait_seconds, stats if isinstance(stats, LoaderStats) else None


def find_host(loader: Any) -> NumpyLoader | None:
    """Return the loader of numpy batches behind a loader; None where there is none of tpufeed."""
    names: Sequence[str] = ("source", "loader", "stream")
    for _ in range(4):
        if isinstance(loader, NumpyLoader) or loader is None:
            return loader
        loader = next((getattr(loader, name) for name in names if getattr(loader, name, None) is not None), None)
    return None


def _write_summary(writer: Any, figures: Mapping[str, float], step: int) -> None:
    import tensorflow as tf

    with writer.as_default():
        for name, value in figures.items():
            tf.summary.scalar(name, value, step)
