"""Options of `tf_dataset` beyond those of every loader."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal
from urllib.parse import urlsplit

from tpufeed.dataset.partition import World
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError
from tpufeed.loaders.options import OPTION_NAMES, LoaderKeywords, LoaderOptions, check_bool, make_options

Sharding = Literal["dynamic", "off", "file"]


class TfKeywords(LoaderKeywords, total=False):
    """The keywords of `tf_dataset`; `TfOptions` explains those that no other loader has."""

    direct: bool
    deterministic: bool
    state: Mapping[str, Any] | None
    service: str | None
    sharding: Sharding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TfOptions:
    """Options that say how a `tf.data.Dataset` gets its batches.

    Attributes:
        direct: TensorFlow reads, decodes and augments, in a graph without Python.
        deterministic: order, pixels and state are those of `numpy_loader`, and no batch is taken ahead of the training
            loop: `dataset.state_dict()` says where it is.
        state: where to begin, as `state_dict()` of any loader says.
        service: address of a tf.data service's dispatcher, "grpc://host:port". Implies `direct`. Processes that train
            together name a job, "grpc://host:port/run-1", and each sample comes to one of them.
        sharding: what each worker of the service reads: "dynamic", the default, deals parts of shards to whoever has
            time (a sample comes once an epoch, or never where a worker dies), "file" gives each worker a fixed share
            of the parts (the dispatcher has to know the workers' addresses), and with "off" each reads everything.
    """

    direct: bool = False
    deterministic: bool = False
    state: Mapping[str, Any] | None = None
    service: str | None = None
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        for name in ("direct", "deterministic"):
            check_bool(name, getattr(self, name))
        if self.sharding not in ("dynamic", "off", "file", None):
            raise OptionError(f"sharding is 'dynamic', 'off' or 'file', not {self.sharding!r}")
        if self.sharding is not None and self.service is None:
            raise OptionError("sharding is how a tf.data service shares its work: give service='grpc://host:port' too")
        if self.service is not None:
            object.__setattr__(self, "direct", True)
            object.__setattr__(self, "sharding", self.sharding or "dynamic")
            service_address(self.service)
        if self.direct and self.deterministic:
            raise OptionError(
                "deterministic=True is the order of numpy_loader, and with direct=True, which service implies, "
                "TensorFlow reads in an order of its own: leave one of them out"
            )
        if self.direct and self.state is not None:
            raise OptionError(
                "direct=True has an order that no state can name; save its iterator by tf.train.Checkpoint, or give "
                "another seed when you go on"
            )


def make_tf_options(given: Mapping[str, Any]) -> tuple[LoaderOptions, TfOptions]:
    """The options that a user gave by keyword. Raises OptionError."""
    own = [field.name for field in fields(TfOptions)]
    for_tf = TfOptions(**{name: value for name, value in given.items() if name in own})
    world: Any = given.get("world")
    if hasattr(world, "num_input_pipelines"):
        given = {**given, "world": World(world.input_pipeline_id, world.num_input_pipelines)}
    options = make_options({name: value for name, value in given.items() if name not in own}, (*OPTION_NAMES, *own))
    if for_tf.service is not None and not options.repeat and options.shuffle:
        raise OptionError(
            "each iteration would read the same epoch from a service: give repeat=True, and steps_per_epoch to fit, or "
            "shuffle=False for an evaluation"
        )
    return options, for_tf


def check_direct(dataset: Dataset) -> None:
    """Raises OptionError for a dataset whose images only the loaders turn: a graph of TensorFlow reads no EXIF."""
    if dataset.manifest.upright:
        raise OptionError(
            f"{dataset.url} was adopted with --exif apply, and with direct=True TensorFlow decodes, which turns no "
            "image: leave direct=True out, or warm a cache of the dataset: its images are upright"
        )


def service_address(service: str) -> tuple[str, int, str]:
    """Host and port of a service's URL, and the name of a job, which may be empty. Raises OptionError."""
    try:
        parts = urlsplit(service)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError):
        host, port = None, None
    if not host or not port or parts.scheme != "grpc":
        raise OptionError(
            "service is a dispatcher's address, and maybe a job's name, like 'grpc://10.0.0.2:5000' or "
            f"'grpc://10.0.0.2:5000/run-1', not {service!r}"
        )
    return host, port, parts.path.strip("/")
