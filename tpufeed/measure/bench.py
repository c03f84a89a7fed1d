"""The benchmark: feed a device from each dataset by each loader, in turns, each time in a new process."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from typing import Annotated, Any

from tpufeed.adapters.loader import Loader
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import LoaderError, MissingExtraError, OptionError
from tpufeed.images.description import parse_op
from tpufeed.images.ops import HorizontalFlip, RandomResizedCrop
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.protocols import Op
from tpufeed.measure.accelerator import Limits
from tpufeed.measure.feeding import DeviceChoice, feed
from tpufeed.measure.machine import machine, place_of
from tpufeed.measure.naive import NaiveLoader
from tpufeed.measure.results import BenchRun, spread
from tpufeed.measure.tpu import AcceleratorProfile, find_tpu, nearest, profile
from tpufeed.options import Count, Number, above, at_least, check_fields
from tpufeed.processes.child import Child, ChildDiedError, Failure, stop_all
from tpufeed.stream.mixture import Mixture, parse_mixture
from tpufeed.text import format_count

EMULATED = "emulated"
DEFAULT_DEVICE = "emulated:tpu-v3-8"
REAL_DEVICES = ("xla-cpu", "xla-tpu", "jax-cpu", "jax-tpu")
DRAIN = "none"
_BATCH_SIZE, _SECONDS = 128, 8.0
_WARM_UP_SECONDS = 2.0
_LONGEST_SECONDS = 900.0  # to import frameworks, to start workers, to copy shards and to compile
_ENTRY = "tpufeed.measure.bench:serve"

# Loader: (adapter of `tpufeed.Loader`, its options, the loader's options). One iteration of a tf.data.Dataset goes
# through all epochs, because beginning another iteration takes up to 0.4 s.
LOADERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "numpy": ("", {}, {}),
    "torch": ("to_torch", {}, {}),
    "tf": ("to_tf", {}, {"repeat": True}),
    "tf-direct": ("to_tf", {"direct": True}, {"repeat": True}),
    "xla": ("to_xla", {}, {}),
    "jax": ("to_jax", {}, {}),
    "naive": ("", {}, {}),
}
_DEFAULT_OPS = (RandomResizedCrop(224), HorizontalFlip())

# Packages that loaders and kinds of devices need: (module, its name for people, extra).
_PACKAGES = {
    "torch": ("torch", "torch", "torch"),
    "tf": ("tensorflow", "TensorFlow", "tf"),
    "tf-direct": ("tensorflow", "TensorFlow", "tf"),
    "xla": ("torch_xla", "torch_xla (with torch 2.9)", "xla"),
    "jax": ("jax", "JAX", "jax"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of a benchmark.

    Attributes:
        device: emulated:PROFILE, emulated with `step_ms`, xla-cpu, xla-tpu, jax-cpu, jax-tpu, or none, which only
            drains the loader. Default: emulated:tpu-v3-8, or emulated if `step_ms` is given.
        batch_size: images per step. Default: the profile's batch size, or 128.
        step_ms: milliseconds per batch of your own emulated accelerator.
        steps: number of steps of each measurement.
        seconds: length of each measurement, from its first batch. Default: 8, unless `steps` are given.
        repeats: number of measurements of each loader, in turns with other loaders.
        warm_up: number of short rounds at the beginning that do not count. 0 leaves a cold page cache cold.
        split: the split to read.
        ops: ops as the command line writes them. Default: a random-resized crop and a flip, or a cache's live ops. No
            default for other datasets if there are `device_ops`.
        device_ops: ops that are left to the device, see `tpufeed.Loader`. The loaders xla and jax run them on a real
            device. With the loader numpy and the device emulated or none, nothing runs them: only the host is measured.
            All other combinations run them on the host.
        threads: see `tpufeed.Loader`.
        processes: see `tpufeed.Loader`.
        model: the model that an emulated TPU trains. Default: ResNet-50, which the profiles are for.
        tpu: a TPU to emulate at its high rate: short for the device emulated:tpu-NAME.
        patience_seconds: extra time of a measurement if `seconds` are too few for a verdict.
    """

    device: str | None = None
    batch_size: Count | None = None
    step_ms: Annotated[float, above(0, 1e6)] | None = None
    steps: Annotated[int, at_least(2)] | None = None
    seconds: Annotated[float, above(0, 86_400)] | None = None
    repeats: Count = 3
    warm_up: Number = 1
    split: str = "train"
    ops: tuple[str, ...] | None = None
    device_ops: tuple[str, ...] = ()
    threads: Count | None = None
    processes: Number | None = None
    model: str | None = None
    tpu: str | None = None
    patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_fields(self)
        for text in (*(self.ops or ()), *self.device_ops):
            parse_op(text)
        if self.tpu is not None and (self.device is not None or self.step_ms is not None):
            raise OptionError(
                f"tpu {self.tpu!r} is short for the device {EMULATED}:tpu-{self.tpu}: give only one of them"
            )
        self.choice  # noqa: B018  # raises if the device is wrong

    @property
    def choice(self) -> DeviceChoice:
        """The device, with its profile if it is emulated."""
        name = self.device or (DEFAULT_DEVICE if self.step_ms is None else EMULATED)
        if self.tpu is not None:
            name = f"{EMULATED}:tpu-{find_tpu(self.tpu).name}"
        if self.step_ms is not None and name != EMULATED:
            raise OptionError(f"step_ms is for the device {EMULATED!r}; {name} has its own steps")
        kind, _, rest = name.partition(":")
        if kind != EMULATED:
            if self.model is not None:
                raise OptionError(f"a model is for emulated TPUs; the device {name} runs a small step")
            nearest(name, (*REAL_DEVICES, DRAIN, EMULATED, DEFAULT_DEVICE), "device")
            if name == DRAIN:
                return DeviceChoice(name, "none")
            return DeviceChoice(name, "xla" if name.startswith("xla") else "jax", platform=name.partition("-")[2])
        if name != EMULATED:
            known = profile(rest)
        elif self.step_ms is None:
            raise OptionError(f"a device {EMULATED!r} without a profile needs step_ms: --step-ms 40 --batch 256")
        else:
            batch_size = self.batch_size or _BATCH_SIZE
            known = AcceleratorProfile(f"{self.step_ms:g}ms-step", 1e3 * batch_size / self.step_ms, batch_size)
        return DeviceChoice(name, "emulated", known if self.model is None else known.training(self.model))

    @property
    def images_a_step(self) -> int:
        """The batch size: the given one, or the device's."""
        known = self.choice.profile
        return self.batch_size or (None if known is None else known.batch_size) or _BATCH_SIZE

    @property
    def limits(self) -> Limits:
        """Limits at which a measurement ends."""
        seconds = _SECONDS if self.steps is None and self.seconds is None else self.seconds
        return Limits(self.steps, seconds, self.patience_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measurement to make in another process."""

    url: str
    loader: str
    options: BenchOptions

    def __str__(self) -> str:
        return f"{self.url}, {self.loader}{', device ops' if self.options.device_ops else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The result of a benchmark.

    Attributes:
        machine: see `machine.machine`.
        places: the places of the datasets, see `machine.place_of`.
        options: the options of the benchmark.
        runs: the median run of each dataset and loader, in the order given.
    """

    machine: dict[str, Any]
    places: tuple[dict[str, Any], ...]
    options: BenchOptions
    runs: tuple[BenchRun, ...]


def measure(measurement: Measurement) -> BenchRun:
    """Make the measurement, in this process.

    Raises:
        UsageError: a dataset, split, device or package does not exist, or they do not fit together.
        Exception: an error of the loader.
    """
    url, name, options = measurement.url, measurement.loader, measurement.options
    choice, split, size = options.choice, options.split, options.images_a_step
    check_loaders([name], options)
    if choice.kind == "xla" or name == "xla":
        from tpufeed.adapters.xla import runtime  # noqa: F401  # torch_xla cannot be imported after TensorFlow
    data, datasets = _open(url, split, size)
    are_caches = all(dataset.manifest.cache is not None for dataset in datasets)
    source, batches = "cache" if are_caches else "shards", None
    if isinstance(data, Mixture):
        source = "mixture"
    else:
        batches = data.split(split).records // size
    odd = next((dataset for dataset in datasets if dataset.manifest.pixels != RGB8), None)
    if odd is not None and choice.kind in ("xla", "jax"):
        raise OptionError(f"the model that bench trains takes 8-bit RGB, and {odd.label} has other images: use --tpu")
    loader: Any
    if name == "naive":
        if isinstance(data, Mixture):
            raise OptionError("the loader naive reads a single dataset; use another loader for a mixture")
        loader = NaiveLoader(data, split, size)
    else:
        device_ops = [parse_op(text) for text in options.device_ops]
        # Caches have their own live ops, and device ops may crop themselves.
        ops: Sequence[Op] | None = None if are_caches or device_ops else _DEFAULT_OPS
        if options.ops is not None:
            ops = [parse_op(text) for text in options.ops]
        adapter, own, always = LOADERS[name]
        loader = Loader(
            data,
            split,
            batch_size=size,
            ops=ops,
            device_ops=device_ops or None,
            threads=options.threads,
            processes=options.processes,
            **always,
        )
        if adapter:
            loader = getattr(loader, adapter)(**own)
        elif device_ops and choice.kind in ("emulated", "none"):
            loader = _LeftToDevice(loader)
    try:
        run = feed(choice, loader, size, options.limits, batches)
    finally:
        getattr(loader, "close", lambda: None)()
    return replace(run, label=str(measurement), url=url, loader=name, source=source)


class _LeftToDevice:
    """The batches of a loader as a device gets them: its device ops still have to run."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self.close = loader, loader.close

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return self._loader.stream.iterate(on_device=True)


def _open(url: str, split: str, batch_size: int) -> tuple[Dataset | Mixture, list[Dataset]]:
    """Open a dataset, or a mixture and its datasets. Raises OptionError if a batch of a dataset needs more samples."""
    data = parse_mixture(url)
    if isinstance(data, Mixture):
        return data, data.open(split)
    dataset = open_dataset(data)
    records = dataset.split(split).records
    if records < batch_size:
        raise OptionError(
            f"split {split!r} of {dataset.url} has {format_count(records, 'sample')}, fewer than a batch of "
            f"{batch_size}: give a smaller --batch, or a larger dataset"
        )
    return dataset, [dataset]


def measure_apart(measurement: Measurement) -> BenchRun:
    """Make the measurement in a new process, and end that process with all that it has started.

    Raises the errors of `measure`, and LoaderError if the process dies or takes longer than a quarter of an hour.
    """
    choice = measurement.options.choice
    variables = {} if "TF_CPP_MIN_LOG_LEVEL" in os.environ else {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if choice.kind == "xla":
        variables["PJRT_DEVICE"] = choice.platform.upper()
    if choice.kind == "jax":
        variables["JAX_PLATFORMS"] = choice.platform
    elif measurement.loader == "jax":
        variables["JAX_PLATFORMS"] = "cpu"  # the batches are inspected on the CPU
    child = Child(_ENTRY, variables=variables, apart=True, one_thread=False)
    try:
        child.begin(_ENTRY, measurement)
        if not wait([child.fileno()], _LONGEST_SECONDS + (measurement.options.limits.seconds or 0)):
            raise LoaderError(
                f"{measurement}: not done after {_LONGEST_SECONDS:.0f} s: the loader hangs, or there are too many steps"
            )
        run: BenchRun = child.receive()
    except ChildDiedError:
        how, printed = child.ending()[1], child.output().splitlines() or ["it printed nothing"]
        raise LoaderError(f"{measurement}: the measuring process ended {how}: {printed[-1]}") from None
    finally:
        stop_all([child], 0.0)
    return run


def serve(measurement: Measurement, connection: Connection) -> None:
    """Make the measurement in the child process."""
    try:
        run = measure(measurement)
    except Exception as error:  # noqa: BLE001  # the launcher raises it
        connection.send(Failure.of(error, f"{measurement}: the measuring process failed: "))
    else:
        connection.send(run)


def bench(
    urls: Sequence[str],
    loaders: Sequence[str] = ("numpy",),
    options: BenchOptions | None = None,
    measure: Callable[[Measurement], BenchRun] = measure_apart,
    listen: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Feed a device from each of the datasets by each of the loaders.

    Args:
        urls: datasets or caches. "URL=0.7,URL=0.3" is a mixture.
        loaders: numpy, torch, tf, tf-direct, xla, jax, and naive: the loader that people write themselves.
        options: the device, the batches, and how long to measure.
        measure: makes one measurement.
        listen: called with a description of the next measurement.

    Raises:
        UsageError: a dataset, loader, device or package does not exist. Raised before anything is measured.
        Exception: an error of a loader.
    """
    options = options or BenchOptions()
    check_loaders(loaders, options)
    if not urls:
        raise OptionError("no dataset is given")
    places = list[dict[str, Any]]()
    for url in urls:
        places += map(place_of, _open(url, options.split, options.images_a_step)[1])
    about = machine()
    measurements = [Measurement(url=url, loader=loader, options=options) for url in urls for loader in loaders]
    label = options.choice.label

    def measured(one: Measurement, note: str = "") -> BenchRun:
        listen(f"{label} from {one.url} by {one.loader}{note}")
        return measure(one)

    seconds = min(_WARM_UP_SECONDS, options.limits.seconds or _WARM_UP_SECONDS)
    short = replace(options, seconds=seconds, patience_seconds=0.0)
    for one in measurements * options.warm_up:
        measured(replace(one, options=short), " (warm-up)")
    # Loaders take turns, A B A B: if the machine is slow for a while, it is slow for all of them.
    rounds = [[measured(one) for one in measurements] for _ in range(options.repeats)]
    runs = tuple(map(middle_run, zip(*rounds, strict=True)))
    return BenchResult(machine=about, places=tuple(places), options=options, runs=runs)


def check_loaders(loaders: Sequence[str], options: BenchOptions) -> None:
    """Check that the loaders can feed the device. Raises OptionError, or MissingExtraError if a package is missing."""
    if not loaders:
        raise OptionError(f"no loader is given; the loaders are {', '.join(LOADERS)}")
    choice = options.choice
    for loader in loaders:
        nearest(loader, LOADERS, "loader")
        if loader == "xla" and choice.kind not in ("xla", "none"):
            raise OptionError(
                f"the loader xla puts batches on a device of torch_xla: give --device xla-cpu or xla-tpu, not "
                f"{choice.name}. To measure how long {choice.name} would wait, use the loader numpy"
            )
        if loader == "jax" and choice.kind == "xla":
            raise OptionError(f"the loader jax cannot feed {choice.name}: give --device jax-cpu or jax-tpu")
        if loader == "naive" and (options.ops is not None or options.device_ops):
            raise OptionError("the loader naive has its own random-resized crop and flip: leave out the ops")
        for what in (loader, choice.kind):
            module, name, extra = _PACKAGES.get(what, ("", "", ""))
            if module and find_spec(module) is None:
                raise MissingExtraError(name, extra)


def middle_run(runs: Sequence[BenchRun]) -> BenchRun:
    """Return the repeat with the median rate, with the rates of all repeats, and a problem if any repeat has one."""
    rated = sorted(runs, key=lambda run: run.images_per_second or 0.0)
    middle = rated[(len(rated) - 1) // 2]
    problems, doubtful = middle.problems, [run for run in runs if run.problems]
    if doubtful and not problems:
        problems = (f"in {len(doubtful)} of {format_count(len(runs), 'repeat')}: {doubtful[0].problems[0]}",)
    rates = spread([run.images_per_second for run in runs if run.images_per_second is not None])
    return replace(middle, rates=rates, problems=problems)
