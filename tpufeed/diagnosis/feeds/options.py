"""Options of a benchmark, checked once: loaders, devices and how long."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal

from tpufeed.diagnosis.feeds.loaders import JAX, LOADERS, XLA
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.parsing import parse_op
from tpufeed.profiling.accelerator import Limits
from tpufeed.profiling.tpu import AcceleratorProfile, find_tpu, nearest, profile

EMULATED = "emulated"
DEFAULT_DEVICE = "emulated:tpu-v3-8"
REAL_DEVICES = ("xla-cpu", "xla-tpu", "jax-cpu", "jax-tpu")
DRAIN = "none"
_BATCH_SIZE, _SECONDS, _MOST_SECONDS = 128, 8.0, 86_400.0


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The device that is fed.

    Attributes:
        name: as given.
        kind: how it is driven.
        profile: of an emulated one.
        platform: "cpu" or "tpu" of a real one.
    """

    name: str
    kind: Literal["emulated", "xla", "jax", "none"]
    profile: AcceleratorProfile | None = None
    platform: str = ""

    @property
    def label(self) -> str:
        """The name in tables, with EMULATED where it is so."""
        return self.name if self.profile is None else f"EMULATED {self.profile.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of a benchmark.

    Attributes:
        device: emulated:PROFILE, emulated with `step_ms`, xla-cpu, xla-tpu, jax-cpu, jax-tpu, or none, which only
            drains the loader. By default emulated:tpu-v3-8, or emulated where there is `step_ms`.
        batch_size: by default what belongs to the profile, else 128.
        step_ms: that an emulated accelerator of your own takes for a batch.
        steps: of each measurement.
        seconds: of each measurement, from its first batch on; by default 8, where there are no `steps`.
        repeats: measurements of each loader, in turns with the others.
        warm_up: rounds before them that count for nothing; they fill the page cache and the stage.
        split: of the dataset.
        ops: as the command line writes them; by default a random-resized crop and a flip, the `final` ops of a cache.
        threads: see `LoaderOptions`.
        processes: see `LoaderOptions`.
        model: what an emulated TPU trains; by default ResNet-50, of which the profiles are.
        tpu: to emulate, at its high rate: another way to say `device`.
        patience_seconds: so much longer a measurement may take where `seconds` are too few for a verdict.
    """

    device: str | None = None
    batch_size: int | None = None
    step_ms: float | None = None
    steps: int | None = None
    seconds: float | None = None
    repeats: int = 3
    warm_up: int = 1
    split: str = "train"
    ops: tuple[str, ...] | None = None
    threads: int | None = None
    processes: int | None = None
    model: str | None = None
    tpu: str | None = None
    patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "steps": 2, "repeats": 1, "warm_up": 0, "threads": 1, "processes": 0}
        for name, fewest in least.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < fewest):
                raise OptionError(f"{name} is a whole number, at least {fewest}, not {value!r}")
        if self.seconds is not None and not 0 < self.seconds <= _MOST_SECONDS:
            raise OptionError(f"seconds is a number above 0, at most {_MOST_SECONDS:,.0f}, not {self.seconds!r}")
        for text in self.ops or ():
            parse_op(text)
        if self.tpu is not None and (self.device is not None or self.step_ms is not None):
            raise OptionError(f"tpu {self.tpu!r} is another way to say the device {EMULATED}:tpu-{self.tpu}: give one")
        self.choice  # noqa: B018  # raises what is wrong with the device

    @property
    def choice(self) -> DeviceChoice:
        """The device, with its profile where it is an emulated one."""
        found = self._choose()
        if self.model is None:
            return found
        if found.profile is None:
            raise OptionError(f"a model is for emulated TPUs; the step of the device {found.name} is a small one")
        return replace(found, profile=found.profile.training(self.model))

    def _choose(self) -> DeviceChoice:
        name = self.device or (DEFAULT_DEVICE if self.step_ms is None else EMULATED)
        if self.tpu is not None:
            name = f"{EMULATED}:tpu-{find_tpu(self.tpu).name}"
        if name == EMULATED:
            if self.step_ms is None:
                raise OptionError(f"a device {EMULATED!r} without a profile needs step_ms: --step-ms 40 --batch 256")
            if not 0 < self.step_ms < float("inf"):
                raise OptionError(f"a step takes more than 0 milliseconds, not {self.step_ms:g}")
            batch_size = self.batch_size or _BATCH_SIZE
            own = AcceleratorProfile(f"{self.step_ms:g}ms-step", 1e3 * batch_size / self.step_ms, batch_size)
            return DeviceChoice(name, "emulated", own)
        if self.step_ms is not None:
            raise OptionError(f"step_ms is for the device {EMULATED!r}; {name} has steps of its own")
        if name.startswith(f"{EMULATED}:"):
            return DeviceChoice(name, "emulated", profile(name.removeprefix(f"{EMULATED}:")))
        if name == DRAIN:
            return DeviceChoice(name, "none")
        nearest(name, (*REAL_DEVICES, DRAIN, EMULATED, DEFAULT_DEVICE), "device")
        kind, _, platform = name.partition("-")
        return DeviceChoice(name, "xla" if kind == "xla" else "jax", platform=platform)

    @property
    def images_a_step(self) -> int:
        """The batch size, as given or as it follows from the device."""
        known = self.choice.profile
        return self.batch_size or (None if known is None else known.batch_size) or _BATCH_SIZE

    @property
    def limits(self) -> Limits:
        """The end of a measurement."""
        seconds = _SECONDS if self.steps is None and self.seconds is None else self.seconds
        return Limits(self.steps, seconds, self.patience_seconds)


def check_loaders(loaders: Sequence[str], options: BenchOptions) -> None:
    """Raise OptionError for a loader that is unknown or cannot feed the device, or MissingExtraError."""
    if not loaders:
        raise OptionError(f"no loader is given; there are {', '.join(LOADERS)}")
    choice = options.choice
    for loader in loaders:
        nearest(loader, LOADERS, "loader")
        if loader == "xla" and choice.kind not in ("xla", "none"):
            raise OptionError(
                f"the loader xla puts batches on a device of torch_xla: give --device xla-cpu or xla-tpu, not "
                f"{choice.name}. What {choice.name} would wait for is measured by the loader numpy"
            )
        if loader == "jax" and choice.kind == "xla":
            raise OptionError(f"the loader jax cannot feed {choice.name}: give --device jax-cpu or jax-tpu")
        if loader == "naive" and options.ops is not None:
            raise OptionError("the loader naive has a random-resized crop and a flip of its own: leave out the ops")
        for module, name, extra in (*LOADERS[loader].packages, *{"xla": [XLA], "jax": [JAX]}.get(choice.kind, [])):
            if find_spec(module) is None:
                raise MissingExtraError(name, extra)
