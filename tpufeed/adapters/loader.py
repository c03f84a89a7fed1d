"""The public API of the adapters: `tpufeed.Loader`, and `tpufeed.device_loader` for other libraries' loaders."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tpufeed.adapters.device import DeviceFeed
from tpufeed.adapters.feed import Feed, stream_of
from tpufeed.adapters.foreign import ForeignStream
from tpufeed.dataset.order import Remainder, World
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError
from tpufeed.images.protocols import Op
from tpufeed.options import Count, Number, Text, a_dict, between, checked
from tpufeed.stream.host import EpochIterator, HostStream
from tpufeed.stream.mixture import DatasetLike
from tpufeed.stream.options import LabelFormat, LoaderOptions, Numa, Shared
from tpufeed.stream.world import WorldLike, to_world

if TYPE_CHECKING:
    import tensorflow as tf

    from tpufeed.adapters.jax.loader import JaxFeed
    from tpufeed.adapters.torch.device import TorchDeviceFeed
    from tpufeed.adapters.torch.loader import TorchFeed
    from tpufeed.adapters.xla.loader import XlaFeed

_READING = dict.fromkeys(LoaderOptions.__slots__, "give it to tpufeed.Loader")  # adapters do not take these options
_ADAPTING = {
    "device": "give it to to_device() or to_xla()",
    "sharding": "give it to to_jax(), to_xla() or to_tf()",
    "device_prefetch": "give it to to_device(), to_xla() or to_jax()",
    "check_ranks": "give it to to_xla()",
    "direct": "give it to to_tf()",
    "deterministic": "give it to to_tf()",
    "service": "give it to to_tf()",
    "class_weight": "give it to to_keras()",
}


class Loader(Feed):
    """Batches of a dataset or cache as numpy arrays.

    `for image, label in loader` is one epoch: image uint8 of shape (batch, height, width, 3), C-contiguous, label int64
    of shape (batch,). The next `for` is the next epoch, with another order, other crops and, in a cache, the next
    variant. You own a batch: its memory is reused only after the last reference is gone. A forked child has a copy of
    its own.

    All options for reading are here. `to_torch`, `to_device`, `to_xla`, `to_jax`, `to_tf` and `to_keras` give the same
    batches to a framework. They share this loader's place: each continues where the last one stopped. Only one
    iteration runs at a time: when a new one begins, earlier iterations of this loader and its feeds raise LoaderError.
    One thread at a time iterates. Any thread may close. Pickles and copies are loaders at the same place, without
    workers.

    Each rank reads its own samples. Before the first batch of an iteration for torch, XLA or JAX all ranks compare what
    they are about to iterate: if they differ, or one cannot begin, all raise the same LoaderError. If `world` is given
    by hand, they do not compare.

    Args:
        url: a dataset's path or URL, an open dataset, or a `tpufeed.Mixture` of several.
        split: the name of the split to read.
        batch_size: samples per batch on one rank.
        ops: ops of `tpufeed.images`, applied to each image with new random numbers in every epoch. All images must
            end up the same size. If all images of the dataset have one size, no op is needed. None: the live ops of a
            cache, or no op.
        device_ops: ops that run after `ops`, with random numbers of the same kind. The device runs them for `to_jax`,
            `to_xla`, `to_device`, and for `to_keras` on JAX. Then they cost the host a few microseconds per image. For
            all other feeds the host runs them. `MixUp` and `CutMix` come last. Images need one size before these ops.
            docs/device_ops.md says which ops there are, and how near their pixels are to those of the host.
        columns: columns of a batch by their short names: image, label, sample (the id within the split), height,
            width, filename, text, or the name of a feature. For a mixture also source, the number of the sample's
            dataset. By default ("image", "label"), or images alone if the dataset has no labels. One name gives the
            column itself, not a tuple. None: a dict of image, label and sample. Without image, no image is decoded and
            no op is needed.
        shuffle: False reads in the dataset's own order.
        seed: seed of the order and of the ops.
        remainder: what happens to a last batch that is not full on every rank: "drop" drops it, "pad" pads it and adds
            a bool mask as the last column, "repeat" completes it with other samples.
        world: (rank, size), or a `tf.distribute.InputContext`. By default the receiving framework is asked at the
            first batch.
        lanes: lanes of the order (docs/order.md), a multiple of the world's size.
        processes: worker processes that decode, so that decoding and the training loop do not share a GIL. 0 decodes
            in threads of this process. By default the environment variable TPUFEED_PROCESSES, else one per core of this
            rank, but no more than `prefetch`. A `memory://` dataset, and ops that `__main__` defines, need 0.
        threads: decoding threads per process. By default the cores of this rank divided by the processes, and twice
            that if images are encoded and larger than 48 KB on average.
        prefetch: batches to prepare ahead on the host, also of the next epoch. By default 2 per process and at least 4,
            if they fit into 4 GB or an eighth of the free memory, and into half of it.
        repeat: True makes one iteration endless: epoch follows epoch. `len` is still that of one epoch.
        max_bad_records: number of different damaged or undecodable records to skip, each with a warning: a good sample
            of the batch takes its place, or zeros if it has none, and a bool mask in the last column is False there.
            Beyond this number, RecordError is raised.
        max_bad_shards: number of different shards to lose: missing, or not of the manifest's size. Each is named with a
            warning when it is first read. Its samples are masked like bad records. Beyond this number, or if all shards
            are lost, ShardError is raised.
        timeout_seconds: seconds to wait for a batch before LoaderError says that a drive or an op hangs. Hanging worker
            processes are killed. A hanging thread (`processes=0`) cannot be, and keeps the program from ending.
        numa: on a host with several NUMA nodes, "auto" pins each worker process, and the memory of its batches, to one
            node: to any node, or if the host has several ranks, to a node of this rank's TPU chips. "off" leaves this
            to the system.
        local_dir: folder for verified copies of remote shards, shared by all processes of this host. By default the
            environment variable TPUFEED_LOCAL_DIR, else /dev/shm if it has room, else the user's cache folder.
        local_bytes: total size of the copies, as "64GB" or a number. By default half of the free space. 0 makes no
            copies and reads remote records by ranges. A dataset that fits is read from the store in its first epoch
            only.
        pad: static lengths for columns whose lists vary in length, like {"boxes": 64}. By default the longest list of
            the dataset. `<name>_length`, int32 (batch,), is the next column. docs/samples.md shows every kind of
            column.
        truncate: True to cut all lists that are longer than that, or the names of the columns to cut. A longer list in
            any other column is an error.
        fill: for a column, the value that replaces a missing one (no default), pads a list (0, or -1 for labels), or
            fills a mask beyond the image (0).
        label_format: form of label lists: "ids" as stored, or "multi_hot" for float32 (batch, classes).
        min_visibility: a crop drops a box, with everything that belongs to it, if less than this share of its area is
            left. `stats()` counts dropped boxes. Boxes with no area left are always dropped.
        views: multi-crop: several lists of ops instead of `ops`. Each makes its own crop of every image, and `(ops, 2)`
            makes two. image is then (batch, views, height, width, 3), or one column per size, like image_224 and
            image_96.
        share: what views have in common: "crop" for the same random crops, flips and rotations, while colours differ,
            or "colors" for all other ops, while crops differ. With "crop" masks, boxes and further images may be asked
            for, too: the ops of the first view move them.

    Attributes:
        stream: reads and decodes, and has the place, the workers and the counts.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: an option does not fit the dataset.
    """

    stream: HostStream

    @checked(_ADAPTING)
    def __init__(  # noqa: PLR0913  # each option is a parameter that editors show
        self,
        url: DatasetLike,
        split: str = "train",
        *,
        batch_size: int = 128,
        ops: Sequence[Op] | None = None,
        device_ops: Sequence[Op] | None = None,
        columns: Sequence[str] | None = "default",
        shuffle: bool = True,
        seed: int = 0,
        remainder: Remainder = "drop",
        world: WorldLike | None = None,
        lanes: int | None = None,
        processes: int | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
        repeat: bool = False,
        max_bad_records: int = 0,
        max_bad_shards: int = 0,
        timeout_seconds: float = 600.0,
        numa: Numa = "auto",
        local_dir: str | Path | None = None,
        local_bytes: str | int | None = None,
        pad: Mapping[str, int] | None = None,
        truncate: bool | Sequence[str] = False,
        fill: Mapping[str, float | str] | None = None,
        label_format: LabelFormat = "ids",
        min_visibility: float = 0.0,
        views: Sequence[Any] | None = None,
        share: Shared | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in LoaderOptions.__slots__}
        options = LoaderOptions(**given | {"world": None if world is None else to_world(world)})
        self.stream = HostStream(url, split, options)

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read. Raises OptionError for a mixture, whose datasets are `stream.sources`."""
        return self.stream.dataset

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of every image: (height, width, channels), after the frames of clips, and views. () without images."""
        return self.stream.image_shape

    @property
    def world(self) -> World:
        """Rank and size of the world of this loader, looked up at the first use."""
        return self.stream.world

    def __iter__(self) -> EpochIterator:
        """Return the next epoch, from its start or a state's place, and with `repeat` all later ones, too.

        The epoch begins with its first batch. Until then it stays the next one.
        """
        return EpochIterator(self.stream)

    @checked()
    def state_dict(self, batches: Number | None = None) -> dict[str, Any]:
        """Return the place of the training loop as plain data. It counts batches handed out, not batches prefetched.

        Args:
            batches: number of batches that the loop has had of the newest iteration. Give it if a framework prefetches
                by itself, as TensorFlow does without `to_tf(deterministic=True)`.
        """
        return self.stream.state_dict(batches)

    @checked(_READING)
    def to_torch(self) -> "TorchFeed":
        """Return the batches as torch tensors on the host, in the same memory.

        image is uint8 of shape (batch, height, width, 3), contiguous, label int64 of shape (batch,). Strings stay numpy
        arrays. `to_device` puts batches on a device ahead of need.

        Each rank of torch.distributed, torch_xla or JAX reads its own samples, so no DistributedSampler is needed.
        Lightning and Accelerate add none. The ranks of torch.distributed compare before the first batch.

        Raises MissingExtraError if torch is not installed.
        """
        from tpufeed.adapters.torch.loader import TorchFeed

        return TorchFeed(self.stream)

    @checked(_READING)
    def to_device(self, device: Any = None, *, device_prefetch: Count = 2) -> "TorchDeviceFeed":
        """Return the batches on a torch device, the next few already there while a step runs. Needs torch 2.7 or later.

        They are the batches of `to_torch`. `stats()` returns a `DeviceStats`. The first batch is fetched in the
        caller's thread, where frameworks may start and processes may be forked. A thread that ends with the loop
        fetches the others.

        Args:
            device: torch's name of the device, "tpu" with TorchTPU. By default the accelerator if there is one, else
                the CPU. XLA devices are for `to_xla`.
            device_prefetch: batches on the device ahead of the one in use. Each takes device memory.

        Raises:
            MissingExtraError: torch is not installed, or torch_tpu for "tpu".
            OptionError: device_prefetch is below 1; or for "tpu", torch_tpu finds no TPU or is not Google's package.
        """
        from tpufeed.adapters.torch.device import TorchDeviceFeed

        return TorchDeviceFeed(self.stream, device, device_prefetch)

    @checked(_READING)
    def to_xla(
        self, *, device: Any = None, sharding: Any = None, device_prefetch: Count = 2, check_ranks: bool = True
    ) -> "XlaFeed":
        """Return the batches on an XLA device of torch_xla, the next few already there while a step runs.

        image is uint8 (batch, height, width, 3), label int64 (batch,), on the device. `to_device_float` converts images
        for a model. Strings stay on the host. `stats()` returns a `DeviceStats`.

        Inside `torch_xla.launch` the world is torch_xla's.

        Args:
            device: device of the batches. By default `torch_xla.device()` of the thread that iterates.
            sharding: under SPMD, a `ShardingSpec` for each column by name, None for a column that every device holds
                whole, or one spec for all columns, fitted to the axes of each tensor. A mesh of several axes, of which
                a spec names only some, leaves labels whole on every device.
            device_prefetch: batches on the device ahead of the one in use. Each takes device memory.
            check_ranks: False if only some of the ranks iterate this feed: then ranks do not compare.

        Raises:
            MissingExtraError: torch_xla is not installed.
            UsageError: tensorflow was imported before torch_xla.
            OptionError: an option does not fit; raised with the first batch if that depends on the ranks.
        """
        from tpufeed.adapters.xla.loader import XlaFeed

        return XlaFeed(self.stream, device, sharding, device_prefetch, check_ranks)

    @checked(_READING)
    def to_jax(self, sharding: Any = None, *, device_prefetch: Count = 2) -> "JaxFeed":
        """Return the batches as global `jax.Array`s, the next few already on the devices while a step runs.

        image is uint8 (rows, height, width, 3), label int32 (rows,), or int64 if JAX is told to use it. Strings stay
        numpy arrays of this process's rows. `rows` is `batch_size` times the number of ranks. `to_device_float`
        converts images for a model. `stats()` returns a `DeviceStats`.

        Each process reads the rows that its devices hold. Processes that hold the same rows, as along a model axis, are
        one rank and read the same samples. A `world` given by hand decides which samples are read. The shape of an
        array still follows from the sharding.

        Args:
            sharding: sharding of the images: a `NamedSharding` (labels use only the axes that they have), or a `Mesh`,
                over whose first axis rows are split. By default the mesh that `jax.set_mesh` has set when an
                iteration begins, else all devices of all processes in a mesh of one axis, "data".
            device_prefetch: batches on the devices ahead of the one in use. Each takes device memory.

        Raises:
            MissingExtraError: JAX is not installed.
            OptionError: `sharding` is something else; or, with the first batch, it does not fit the batch.
        """
        from tpufeed.adapters.jax.loader import JaxFeed

        return JaxFeed(self.stream, sharding, device_prefetch)

    @checked(_READING)
    def to_tf(
        self,
        *,
        direct: bool = False,
        deterministic: bool = False,
        service: Text | None = None,
        sharding: Literal["dynamic", "off", "file"] | None = None,
        finish: bool = True,
    ) -> "tf.data.Dataset":
        """Return the batches as a `tf.data.Dataset` of static shapes. Place, counts and class names stay the loader's.

        Elements are `(image, label)`: uint8 (batch, height, width, 3) and int64 (batch,), or the `columns` asked for.
        Every new iteration is the next epoch, so each epoch of Keras' `fit` sees new crops and, in a cache, the next
        variant. With `repeat` one iteration never ends. It begins at the place that `load_state_dict` was given.

        By default tpufeed's own workers read and decode, and TensorFlow gets their batches without a copy: the order is
        the loader's, remote shards are read once and checked, and `tf.train.Checkpoint` saves and restores an
        iterator's place. TensorFlow takes batches ahead of the loop, so `state_dict(batches=n)` is the loop's place
        after `n` batches of the newest iteration. For Keras' `fit` see `keras_state`.

        With `direct` TensorFlow itself reads the shards, gs:// by its own client, in an order that differs in each run:
        for a tf.data service, and for hosts without room for local copies. It supports the ops that TensorFlow has,
        with draws of the same distributions, which repeat by seed, epoch and sample. Nothing is counted, so
        `state_dict()` and `stats()` raise OptionError. TensorFlow reads its settings for gs:// when it is imported: let
        tpufeed import it, or heed the warning that it logs. docs/tfdata.md compares the ways.

        Args:
            direct: True lets TensorFlow read, decode and augment, in a graph without Python.
            deterministic: True gives the order and pixels of the loader, and takes no batch ahead of the training loop:
                `state_dict()` is the loop's place.
            service: address of a tf.data service's dispatcher, "grpc://host:port". Implies `direct`. Processes that
                train together name a job, "grpc://host:port/run-1", and each sample goes to one of them.
            sharding: what each worker of the service reads: parts of shards as it has time ("dynamic", the default:
                each sample comes once per epoch, or never if a worker dies), a fixed share of the parts ("file": the
                dispatcher has to know the workers' addresses), or everything ("off").
            finish: False leaves the loader's `device_ops` to `Loader.finish`, which a compiled step calls first: a
                `tf.data.Dataset` itself runs on the host. Elements are then dicts.

        Raises:
            MissingExtraError: TensorFlow is not installed.
            OptionError: an option does not fit the loader's.
            UnavailableError: there is no service at that address.
        """
        from tpufeed.adapters.tf.dataset import tf_feed

        return tf_feed(self.stream, direct, deterministic, service, sharding, finish)

    @checked()
    def finish(self, batch: Mapping[str, Any]) -> Any:
        """Return a batch of `to_tf(finish=False)` as `to_tf()` gives it: with the device ops applied, on the device.

        Call it within a `tf.function`, best with `jit_compile=True`, or within a Keras model's `train_step`.
        """
        from tpufeed.adapters.tf.arrays import ARRAYS

        stream = self.stream
        if stream.device_ops is not None and stream.device_ops.mixing is not None:
            stream.keep_classes("the function that calls finish()")
        return stream.form.package(stream.run_device_ops(batch, ARRAYS))

    @checked(_READING)
    def to_keras(
        self,
        *,
        class_weight: Annotated[
            Mapping[int, float], a_dict("weights of 0 or more by class, like {0: 1.5}", between(0.0, 1e38))
        ]
        | None = None,
    ) -> Any:
        """Return batches for `fit`, `evaluate` and `predict` of Keras 3, on any of its backends.

        On TensorFlow it is the `tf.data.Dataset` of `to_tf`, on Keras' other backends a `keras.utils.PyDataset` of
        numpy arrays, which does not need TensorFlow. Both give `(image, label)`: uint8 of shape (batch, height, width,
        3) and int64 of shape (batch,), or the image alone if there are no labels. With a mask, which `remainder="pad"`,
        `max_bad_records` and `max_bad_shards` add, float32 sample weights of shape (batch,) come third: 0 for padding,
        else 1, so that padding counts in no loss and in no weighted metric.

        Each epoch of `fit` is the next epoch of the dataset. So is each call of `evaluate` and `predict`, even if it
        takes only some steps. The batch from which Keras builds a model comes again. With `repeat=True`, give `fit` its
        `steps_per_epoch`. `keras_state` keeps the place of a `fit`.

        Args:
            class_weight: the weight of each class by its id. Other classes have 1, and padding stays at 0. Keras' own
                `class_weight` cannot be given together with a mask.

        Raises:
            MissingExtraError: Keras is not installed.
            OptionError: an option does not fit the loader's; Keras 2; Keras' backend is not installed.
        """
        from tpufeed.adapters.keras.dataset import keras_feed

        return keras_feed(self.stream, class_weight)

    def __repr__(self) -> str:
        return repr(self.stream)


@checked()
def device_loader(
    loader: Iterable[Any],
    device: Any = None,
    *,
    device_prefetch: Count = 2,
    sharding: Any = None,
    check_ranks: bool = True,
) -> Any:
    """Return the batches of `loader` on `device`, the next few already there while a step runs.

    Each `for` iterates `loader` again, in order. If `loader` raises an error, the loop raises it after the batches
    before it. The first batch is fetched in the caller's thread, where frameworks may start and processes may be
    forked. A thread fetches the others, and ends when the loop is left, in any way. A new loop ends an earlier one. A
    state counts batches handed to the training loop, and `stats()` returns a `DeviceStats`. For a `tpufeed.Loader` this
    is `to_device` or `to_xla`.

    On a torch device, with torch 2.7 or later, the result also has `dataset`, `sampler` and all other attributes of
    `loader`. On an XLA device it is an `MpDeviceLoader`, and sends numeric arrays as well as tensors. Inside
    `torch_xla.launch` all ranks compare what they are about to iterate before the first batch of an epoch: if they
    differ, or one cannot begin, all raise the same LoaderError. Dealing samples to ranks is left to `loader`.

    Args:
        loader: a loader of tensors, alone or in tuples, lists and dicts: a DataLoader, a list, a `tpufeed.Loader`.
            Anything else in a batch is passed on unchanged.
        device: torch's name of the device, "tpu" with TorchTPU. By default the accelerator, if there is one, else the
            CPU. "xla" is torch_xla's device of the thread that iterates.
        device_prefetch: batches on the device ahead of the one in use. Each takes device memory.
        sharding: for XLA devices under SPMD, a `ShardingSpec` for each column by name, None for a column that every
            device holds whole, or one spec for all columns, fitted to the axes of each tensor. If batches are tuples,
            the names are those of their columns in order.
        check_ranks: False if only some of the ranks iterate this loader on XLA devices.

    Raises:
        MissingExtraError: torch is not installed, torch_tpu for "tpu", or torch_xla for "xla".
        UsageError: tensorflow was imported before torch_xla.
        OptionError: an option does not fit; or for "tpu", torch_tpu finds no TPU or is not Google's package.
    """
    from tpufeed.adapters.torch.device import ForeignDeviceFeed, StatefulTorchDeviceFeed, TorchDeviceFeed

    ours = stream_of(loader)
    if ours is None and isinstance(loader, str | Path):
        raise OptionError(f"device_loader takes a loader; for a dataset give tpufeed.Loader({str(loader)!r})")
    if isinstance(loader, Iterator) or not any(hasattr(loader, name) for name in ("__iter__", "__getitem__")):
        raise OptionError(
            "device_loader takes a loader that can be iterated again and again, such as a torch DataLoader, not "
            f"{type(loader).__name__}"
        )
    if isinstance(loader, DeviceFeed):
        raise OptionError(
            f"the batches of a {type(loader).__name__} are on a device already; give the loader it came from"
        )
    if str(device).partition(":")[0] == "xla":
        from tpufeed.adapters.xla.loader import XlaFeed

        kept = None if device == "xla" else device
        stream = ForeignStream(loader) if ours is None else ours
        return XlaFeed(stream, kept, sharding, device_prefetch, check_ranks)
    if sharding is not None or not check_ranks:
        raise OptionError('sharding and check_ranks are for XLA devices; give the device "xla", or leave them out')
    if ours is not None:
        return TorchDeviceFeed(ours, device, device_prefetch)
    kind = StatefulTorchDeviceFeed if hasattr(loader, "state_dict") else ForeignDeviceFeed
    return kind(ForeignStream(loader), device, device_prefetch)
