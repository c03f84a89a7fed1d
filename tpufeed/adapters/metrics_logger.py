"""Report how a running training is fed: to TensorBoard, Weights & Biases, MLflow, Prometheus or any function."""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from tpufeed.adapters.device import DeviceStats
from tpufeed.adapters.feed import stream_of
from tpufeed.errors import OptionError
from tpufeed.options import Count, Text, Whole, checked
from tpufeed.stream.host import LoaderStats
from tpufeed.stream.world import find_world

_logger = logging.getLogger(__name__)

_Send: TypeAlias = Callable[[dict[str, float], int], object]
_STEP = "step"
# Prometheus counters: name, field of LoaderStats, help text.
_COUNTERS = (
    ("tpufeed_batches", "batches", "Batches handed to the training loop."),
    ("tpufeed_samples", "samples", "Samples in these batches, including padding."),
    ("tpufeed_wait_seconds", "wait_seconds", "Seconds that the training loop waited for batches."),
    ("tpufeed_read_bytes", "read_bytes", "Bytes of records that were read."),
    (
        "tpufeed_requested_records",
        "requested_records",
        "Remote records read one by one, as their shard had no local copy.",
    ),
    ("tpufeed_bad_records", "bad_records", "Different damaged records that were skipped."),
    ("tpufeed_bad_shards", "bad_shards", "Different shards that were lost and skipped whole."),
    ("tpufeed_read_thread_seconds", "read_seconds", "Seconds that all threads together spent reading records."),
    ("tpufeed_decode_thread_seconds", "decode_seconds", "Seconds that all threads together spent decoding."),
)


class MetricsLogger:
    """Logs metrics of a loader every few training steps.

    Call `step()` after each step, in your loop or in a callback of your trainer. Metrics are for the steps since the
    last report, and for this process:

    - `images_per_second`: samples handed to the training loop per second.
    - `wait_ms`: milliseconds that each step waited for its batch.
    - `idle_percent`: share of the time in which the training loop waited for batches.
    - `read_mb_per_second`: megabytes of records read per second.
    - `local_percent`: share of the records that came from local copies instead of requests, for remote datasets only.
    - `bad_records`, `bad_shards`: different damaged records and lost shards that were skipped since the loader was
      made.

    A `tf.data.Dataset` of a loader waits in TensorFlow's threads, which take batches ahead: there `wait_ms` and
    `idle_percent` may be higher than what the training waits.

    Args:
        loader: a loader or feed of tpufeed, or anything whose `stats()` returns the same.
        to: the target, or a list of targets: a `SummaryWriter` of torch or tensorboardX, a run of Weights & Biases,
            `mlflow` or another object with `log_metrics(metrics, step=)`, a `CollectorRegistry` of prometheus_client,
            or a function `to(metrics, step)`. A failure is logged once as a warning, and the training continues. A
            registry gets its counters at once, and reads them whenever it is scraped.
        every_steps: steps between two reports.
        prefix: prefix of the metrics' names. Names for Prometheus begin with `tpufeed_` instead.
        all_ranks: True for reports from every process. By default only rank 0 reports. A registry belongs to its
            process, has the counters of one loader at a time, and does not keep that loader alive.

    Raises:
        OptionError: the loader has no `stats()`, a target is something else, or a registry has the counters of another
            loader.
    """

    @checked()
    def __init__(
        self,
        loader: Any,
        to: Any,
        *,
        every_steps: Count = 50,
        prefix: Text = "tpufeed/",
        all_ranks: bool = False,
    ) -> None:
        if not callable(getattr(loader, "stats", None)):
            raise OptionError(
                f"MetricsLogger takes a loader with stats(), such as tpufeed.Loader, not {type(loader).__name__}. "
                "Wrap a DataLoader in tpufeed.device_loader, which measures the wait for its batches"
            )
        self._loader, self._prefix, self._all_ranks = loader, prefix, all_ranks
        self._every = every_steps
        self._host = stream_of(getattr(loader, "_loader", loader))  # StepClock keeps its loader there
        self._read()  # fail now, not mid-training, if the loader has no counts
        targets = to if isinstance(to, list | tuple) else [to]
        self._targets = [send for each in targets for send in self._open(each)]
        self._failed = set[int]()
        self._step = self._reported = 0
        self._last: _Point | None = None
        self._figures = dict[str, float]()  # of the last report

    @checked()
    def step(self, number: Whole | None = None) -> None:
        """Count a training step, and report if it is time to.

        Args:
            number: number of the step, if the training numbers its steps. It may skip some. If numbers go back, as
                after a checkpoint was restored, counting begins again there.
        """
        self._step = self._step + 1 if number is None else number
        if self._last is None or self._step < self._reported:
            self._last, self._reported = self._read(), self._step
        elif self._step - self._reported >= self._every:
            self.report()

    def report(self) -> dict[str, float]:
        """Report now, and return the metrics by name. Empty before the second step.

        Without a step since the last report nothing is logged, and the metrics are those of that report.
        """
        last, steps = self._last, self._step - self._reported
        if last is None or steps < 1:
            return dict(self._figures)
        now = self._last = self._read()
        self._reported = self._step
        found = self._compare(last, now, steps)
        figures = self._figures = {self._prefix + name: value for name, value in found.items()}
        if self._all_ranks or self._rank == 0:
            for number, send in enumerate(self._targets):
                try:
                    send(figures, self._step)
                except Exception as error:  # noqa: BLE001  # no tracker may end a training
                    if number not in self._failed:
                        self._failed.add(number)
                        _logger.warning("the loader's metrics could not be logged; this is said once: %r", error)
        return dict(figures)

    @cached_property
    def _rank(self) -> int:
        """Rank of this process, even if every process has a loader with a world of one."""
        world = None if self._host is None else self._host.world
        return find_world().rank if world is None or world.size == 1 else world.rank

    def _open(self, to: Any) -> Iterator[_Send]:
        """Yield the function that sends metrics to a target. Nothing if the target asks for them itself."""
        if hasattr(to, "register") and hasattr(to, "collect"):
            _register(to, _Collector(weakref.ref(self._loader)))
        elif hasattr(to, "add_scalar"):
            yield lambda figures, step: [to.add_scalar(name, value, step) for name, value in figures.items()]
        elif hasattr(to, "define_metric") and hasattr(to, "log"):
            # Log against our own step: W&B's run step may be ahead and cannot go back.
            own_step, is_defined = self._prefix + _STEP, False

            def log(figures: Mapping[str, float], step: int) -> None:
                nonlocal is_defined
                if not is_defined:  # not earlier: the module wandb allows it only after init()
                    to.define_metric(f"{self._prefix}*", step_metric=own_step)
                    is_defined = True
                to.log({**figures, own_step: step})

            yield log
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
        return _Point(perf_counter(), *_split_stats(self._loader.stats()))

    def _compare(self, last: "_Point", now: "_Point", steps: int) -> dict[str, float]:
        seconds, waited = now.at - last.at, now.wait_seconds - last.wait_seconds
        found = {"wait_ms": 1e3 * waited / steps, "idle_percent": min(100.0, 100 * waited / seconds)}
        if last.host is None or now.host is None:
            return found
        samples, read_bytes = now.host.samples - last.host.samples, now.host.read_bytes - last.host.read_bytes
        found |= {"images_per_second": samples / seconds, "read_mb_per_second": read_bytes / seconds / 1e6}
        found |= {"bad_records": now.host.bad_records, "bad_shards": now.host.bad_shards}
        if samples and self._host is not None and any(source.dataset.is_remote for source in self._host.sources):
            requested = now.host.requested_records - last.host.requested_records
            found["local_percent"] = max(0.0, 100 * (1 - requested / samples))
        return found


class _Point(NamedTuple):
    at: float
    wait_seconds: float
    host: LoaderStats | None


class _Collector:
    """Counters of a loader for prometheus_client, which calls `collect` at each scrape."""

    def __init__(self, loader: "weakref.ref[Any]") -> None:
        self.loader = loader

    def describe(self) -> Iterable[Any]:
        """Return the counters with zeros: a registry asks for names at registration."""
        return self._counters(dict.fromkeys((field for _, field, _ in _COUNTERS), 0.0))

    def collect(self) -> Iterable[Any]:
        """Return the counters as they are now."""
        loader = self.loader()
        if loader is None:
            return []
        wait_seconds, host = _split_stats(loader.stats())
        values = {} if host is None else {field: getattr(host, field) for _, field, _ in _COUNTERS}
        return self._counters(values | {"wait_seconds": wait_seconds})

    def _counters(self, values: Mapping[str, float]) -> list[Any]:
        from prometheus_client.core import CounterMetricFamily

        return [
            CounterMetricFamily(name, text, value=values[field]) for name, field, text in _COUNTERS if field in values
        ]


def _register(registry: Any, collector: _Collector) -> None:
    """Register. Replace a collector whose loader is gone. Raises OptionError if another loader is in use."""
    # Not when the loader is collected: that may be during a call of the registry, whose lock is not reentrant.
    older = getattr(registry, "_names_to_collectors", {}).get(_COUNTERS[0][0])
    if isinstance(older, _Collector) and older.loader() is None:
        registry.unregister(older)
    try:
        registry.register(collector)
    except ValueError as error:
        raise OptionError(
            "this registry has the counters of a loader that is in use: give each loader its own "
            "CollectorRegistry, or drop the other loader and its MetricsLogger first"
        ) from error


def _split_stats(stats: Any) -> tuple[float, LoaderStats | None]:
    """Return the seconds that the training loop waited, and the stats of the loader on the host if there is one."""
    if not isinstance(stats, LoaderStats | DeviceStats):
        kind = type(stats).__name__
        raise OptionError(f"MetricsLogger takes a loader whose stats() is a LoaderStats or a DeviceStats, not a {kind}")
    host = stats.host if isinstance(stats, DeviceStats) else stats
    return stats.wait_seconds, host if isinstance(host, LoaderStats) else None
