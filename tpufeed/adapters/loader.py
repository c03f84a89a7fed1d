"""The loader: numpy batches in an exact order, decoded straight into their memory. Adapters hand them to frameworks."""

import logging
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal
from weakref import WeakSet

from tpufeed.adapters.feed import REPLACED, SUPERSEDED, Feed, Iterated, Iteration
from tpufeed.dataset.order import Remainder, World
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.display.summary import Summary
from tpufeed.errors import LoaderError, OptionError, RecordError, StoreError
from tpufeed.images.protocols import Op
from tpufeed.options import Count, Number, Text, a_dict, between, checked
from tpufeed.processes.limits import free_swap, limit_reached, memory_left, memory_limit
from tpufeed.stream.batch import BatchDecoder, DecodedBatch, warn_of_flips
from tpufeed.stream.buffers import BufferPool
from tpufeed.stream.columns import DEVICE_NUMBERS, IMAGE, LABEL, SAMPLE, Batch, BatchForm, Column
from tpufeed.stream.device_ops import Arrays
from tpufeed.stream.executor import CLOSED, BatchTimeout, ThreadExecutor, WorkerConfig, plan_workers
from tpufeed.stream.mixture import DatasetLike, Mixture
from tpufeed.stream.options import LabelFormat, LoaderOptions, Numa
from tpufeed.stream.rank_check import EpochSpec
from tpufeed.stream.sampler import Cursor, Sampler, SampleSource
from tpufeed.stream.training import Epoch, Training
from tpufeed.stream.workers import BatchFuture, Executor, ProcessExecutor
from tpufeed.stream.world import WorldLike, find_world, thread_world, to_world
from tpufeed.text import format_value

if TYPE_CHECKING:
    import tensorflow as tf

    from tpufeed.adapters.jax.loader import JaxFeed
    from tpufeed.adapters.torch.device import TorchDeviceFeed
    from tpufeed.adapters.torch.loader import TorchFeed
    from tpufeed.adapters.xla.loader import XlaFeed

_logger = logging.getLogger(__name__)

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

_FEWEST_AHEAD, _AHEAD_PER_PROCESS = 4, 2
_AHEAD_BYTES, _AHEAD_SHARE = 4 << 30, 8  # batches ahead may take so many bytes, or this part of the free memory
_IN_USE = 2  # batches beside those ahead: the one that the training loop has, and the one that replaces it
_FIRST_AHEAD = 4  # batches at the start of an epoch, whose shards may not have been copied yet


@dataclass(slots=True, kw_only=True, repr=False)
class LoaderStats(Summary):
    """Metrics of a loader since it was made. Subtract two of them for a part of a run.

    Attributes:
        seconds: time from the request for the first batch until the last batch was handed out.
        wait_seconds: time in which the consumer waited for batches; `wait_seconds / seconds` is its idle share.
        waits: batches that were not ready when they were asked for.
        batches: batches handed out.
        samples: samples in these batches, including padding.
        ready: mean number of batches that were ready when one was asked for: `prefetch` or more if the loader never
            holds up its consumer, 0 if it always does.
        read_seconds: time in which all decoding threads together read records, verified CRCs and copied raw images.
        decode_seconds: time in which all decoding threads together decoded and ran ops.
        read_bytes: bytes of records.
        bad_records: different records that were skipped.
        requested_records: remote records that were read one by one, as their shard had no local copy.
        dropped_boxes: boxes that were dropped, as a crop left nothing of them, or less than `min_visibility`.
        processes: processes that decode; 0 if threads of this process decode.
        threads: decoding threads of all processes together.
        nodes: (NUMA node, number of processes pinned to it); empty if processes may run on all nodes.
        prefetch: number of batches prepared ahead at most.
        buffer_bytes: memory of these batches.
    """

    seconds: float = 0.0
    wait_seconds: float = 0.0
    waits: int = 0
    batches: int = 0
    samples: int = 0
    ready: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    read_bytes: int = 0
    bad_records: int = 0
    requested_records: int = 0
    dropped_boxes: int = 0
    processes: int
    threads: int
    nodes: tuple[tuple[int, int], ...] = ()
    prefetch: int
    buffer_bytes: int


class Loader(Feed, Iterated):
    """Batches of a dataset or cache as numpy arrays.

    `for image, label in loader` is one epoch: image uint8 of shape (batch, height, width, 3), C-contiguous, label int64
    of shape (batch,). The next `for` is the next epoch, with another order, other crops and, in a cache, the next
    variant. You own a batch: its memory is reused only after the last reference is gone, and a forked child has it for
    itself.

    All options for reading are here. `to_torch`, `to_device`, `to_xla`, `to_jax`, `to_tf` and `to_keras` give the same
    batches to a framework. They share this loader's place, so each continues where any other stopped. Only one
    iteration runs at a time: when a new one begins, earlier iterations of this loader and its feeds raise LoaderError.
    One thread at a time iterates; any thread may close. Pickles and copies are loaders at the same place, without
    workers.

    Each rank reads its own samples. Before the first batch of an iteration for torch, XLA or JAX all ranks compare what
    they are about to iterate: if they differ, or one cannot begin, all raise the same LoaderError. If `world` is given
    by hand, they do not compare.

    Args:
        url: a dataset's path or URL, an open dataset, or a `tpufeed.Mixture` of several.
        split: the name of the split to read.
        batch_size: samples per batch on one rank.
        ops: ops of `tpufeed.images`, applied to each image with new random numbers in every epoch. All images must
            end up the same size; if all of the dataset have one, no op is needed. None: the live ops of a cache, or no
            op.
        device_ops: ops that run after `ops`, with draws of the same kind. The device runs them in batches of `to_jax`,
            `to_xla`, `to_device`, and of `to_keras` on JAX; then they cost the host a few microseconds per image. The
            host runs them in all other batches. `MixUp` and `CutMix` come last. Images need one size before these ops.
            docs/device_ops.md says which ops there are, and how near their pixels are to those of the host.
        columns: columns of a batch by their short names: image, label, sample (the id within the split), height,
            width, filename, text, or the name of a feature; for a mixture also source, the number of the sample's
            dataset. By default ("image", "label"), or images alone if the dataset has no labels. None: a dict of image,
            label and sample. Without image, no image is decoded and no op is needed.
        shuffle: False reads in the dataset's own order.
        seed: seed of the order and of the ops.
        remainder: what happens to a last batch that is not full on every rank: "drop" drops it, "pad" pads it and adds
            a bool mask as the last column, "repeat" completes it with other samples.
        world: (rank, size), or a `tf.distribute.InputContext`; by default what the receiving framework says when the
            first batch is asked for.
        lanes: lanes of the order (docs/order.md), a multiple of the world's size.
        processes: worker processes that decode, so that decoding and the training loop do not share a GIL. 0 decodes
            in threads of this process. By default the environment variable TPUFEED_PROCESSES, else one per core of this
            rank, but no more than `prefetch`. A `memory://` dataset, and ops that `__main__` defines, need 0.
        threads: decoding threads per process; by default the cores of this rank divided by the processes, and twice
            that if images are encoded and larger than 48 KB on average.
        prefetch: batches to prepare ahead on the host, also of the next epoch; by default 2 per process and at least 4,
            if they fit into 4 GB or an eighth of the free memory, and into half of it.
        repeat: True makes one iteration endless: epoch follows epoch. `len` is still that of one epoch.
        max_bad_records: number of different damaged or undecodable records to skip, each with a warning: a good sample
            of the batch takes its place, and a bool mask in the last column is False there. One more raises
            RecordError.
        timeout_seconds: seconds to wait for a batch before LoaderError says that a drive or an op hangs. Hanging worker
            processes are killed; a hanging thread (`processes=0`) cannot be, and keeps the program from ending.
        numa: on a host with several NUMA nodes, "auto" pins each worker process, and the memory of its batches, to one
            node: to any node, or if the host has several ranks, to a node of this rank's TPU chips. "off" leaves this
            to the system.
        local_dir: folder for verified copies of remote shards, shared by all processes of this host; by default the
            environment variable TPUFEED_LOCAL_DIR, else /dev/shm if it has room, else the user's cache folder.
        local_bytes: total size of the copies, as "64GB" or a number; by default half of the free space. 0 makes no
            copies and reads remote records by ranges. A dataset that fits is read from the store in its first epoch
            only.
        pad: static lengths for columns whose lists vary in length, like {"boxes": 64}; by default the longest list of
            the dataset. `<name>_length`, int32 (batch,), is the next column. docs/samples.md shows every kind of
            column.
        truncate: True to cut all lists that are longer than that, or the names of the columns to cut; a longer list in
            any other column is an error.
        fill: for a column, the value that replaces a missing one (no default), pads a list (0, or -1 for labels), or
            fills a mask beyond the image (0).
        label_format: form of label lists: "ids" as stored, or "multi_hot" for float32 (batch, classes).
        min_visibility: a crop drops a box, with everything that belongs to it, if less than this share of its area is
            left; `stats()` counts dropped boxes. Boxes with no area left are always dropped.
        views: multi-crop: several lists of ops instead of `ops`; each makes its own crop of every image, and `(ops, 2)`
            makes two. image is then (batch, views, height, width, 3), or one column per size, like image_224 and
            image_96.

    Attributes:
        options: the options, checked.
        form: the names of a batch's columns, and whether it is a dict or a tuple.
        columns: how records are decoded into these columns.
        pipeline: the ops of the image, or of its first view, with their seed; device ops come last.
        device_ops: the device ops as a device runs them; None without such ops, or without images.
        pixels: the names of the pixel columns, whose arrays begin at a memory page.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: an option does not fit the dataset.
    """

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
    ) -> None:
        given = {name: value for name, value in locals().items() if name in LoaderOptions.__slots__}
        options = LoaderOptions(**given | {"world": None if world is None else to_world(world)})
        dataset = self._given = url if isinstance(url, Dataset | Mixture) else open_dataset(url)
        self.split = split
        self._sampler = Sampler(dataset, split, options)
        if isinstance(dataset, Mixture) and dataset.stop == "never":
            options = replace(options, repeat=True)
        self.options = options
        datasets = [source.dataset for source in self._sampler.sources]
        self._workers = plan_workers(datasets, options)
        self._executor: Executor | None = None
        self._copies_shards = options.local_bytes != 0 and any(dataset.is_remote for dataset in datasets)
        self._make_decoder(self._sampler.sources)
        if self.columns.fields:
            warn_of_flips(self._decoder.decoders)
        batch_bytes = self._decoder.layout.stride
        wanted = max(_FEWEST_AHEAD, _AHEAD_PER_PROCESS * self._workers.processes)
        self._prefetch = options.prefetch or max(1, min(wanted, self._most_ahead(batch_bytes)))
        self._workers = self._workers.for_batches(self._prefetch)
        self._stats = LoaderStats(
            processes=self._workers.processes,
            threads=max(1, self._workers.processes) * self._workers.threads,
            nodes=tuple(Counter(node.number for node in self._workers.nodes).items()),
            prefetch=self._prefetch,
            buffer_bytes=self._prefetch * batch_bytes,
        )
        self._first_asked = 0.0  # when the first batch was asked for
        self._bad: set[tuple[int, ...]] = set()  # records that were skipped
        self._world = thread_world() if world is None else to_world(world)
        self._find_world: Callable[[], World] = find_world
        self.moved_by: weakref.ref[Any] | None = None  # the newest feed for Keras, which `keras_state` moves
        self._next = 0, 0  # epoch and samples at which the next iteration begins
        self.began = 0, 0  # epoch and samples at which the newest iteration began
        self._of_classes = ""  # what a state with other classes would make wrong, see `keep_classes`
        self.uncounted = ""  # why nothing counts and no place is known: TensorFlow's own graph reads
        self._current: EpochPrefetch | None = None  # of the iteration that was opened or begun last
        self._opened = WeakSet[EpochPrefetch]()  # of all iterations in use
        self._ahead: EpochPrefetch | None = None  # of the next epoch, if its batches are being prepared already

    @property
    def label(self) -> str:
        """The dataset's URL without secrets, or the mixture's description, for messages."""
        return self._sampler.label

    @property
    def sources(self) -> tuple[SampleSource, ...]:
        """The datasets that samples are drawn from: one, or those of a mixture."""
        return self._sampler.sources

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read. Raises OptionError for a mixture, which has `sources`."""
        if len(self.sources) > 1:
            raise OptionError(f"{self.label}: a mixture reads {len(self.sources)} datasets; see the loader's `sources`")
        return self.sources[0].dataset

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the samples that each dataset gives."""
        return self._sampler.shares

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._sampler.training.classes.names

    @property
    def batch_size(self) -> int:
        return self.options.batch_size

    def column(self, name: str) -> Column:
        """Return the dtype of a column, and the shape of one sample."""
        return self._columns[name]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of every image: (height, width, channels), or (views, height, width, channels); () without images."""
        return next((column.shape for column in self.columns.images), ())

    @property
    def world(self) -> World:
        """Rank and size of the world of this loader, looked up at the first use."""
        if self._world is None:
            self._world = self._find_world()
        return self._world

    def find_world_by(self, find: Callable[[], World]) -> None:
        """Look up the world by `find`, unless it was given or looked up before."""
        self._find_world = find

    def check_world(self, find: Callable[[], World], whose: str, advice: str = "") -> None:
        """Look up the world by `find`. Raises OptionError if another one was found before; one given by hand stays."""
        if self.options.world is not None:
            return
        if self._world is None:
            self._find_world = find
        world = find()
        if self.world != world:
            raise OptionError(
                f"{whose} says that this is rank {world.rank} of {world.size}, and the loader was told before that it "
                f"is {self.world.rank} of {self.world.size}: {advice}make a loader for each, or give "
                f"world=({world.rank}, {world.size})"
            )

    @property
    def lanes(self) -> int:
        """Lanes of the order: given, loaded, or the default for the world."""
        return self._sampler.stream(self.world).lanes

    def __len__(self) -> int:
        return self.batches_from(0)

    def batches_from(self, samples: int) -> int:
        """Return the number of batches left in an epoch after `samples` samples of the whole world."""
        return len(self._sampler.share(self.world, samples))

    def __iter__(self) -> "EpochIterator":
        """Return the next epoch, from its start or a state's place, and with `repeat` all later ones, too.

        The epoch begins with its first batch; until then it stays the next one.
        """
        return EpochIterator(self)

    @checked(_READING)
    def to_torch(self) -> "TorchFeed":
        """Return the batches as torch tensors on the host, in the same memory.

        image is uint8 of shape (batch, height, width, 3), contiguous, label int64 of shape (batch,); strings stay numpy
        arrays. `to_device` puts batches on a device ahead of need.

        Each rank of torch.distributed, torch_xla or JAX reads its own samples, so no DistributedSampler is needed;
        Lightning and Accelerate add none. The ranks of torch.distributed compare before the first batch.

        Raises MissingExtraError if torch is not installed.
        """
        from tpufeed.adapters.torch.loader import TorchFeed

        return TorchFeed(self)

    @checked(_READING)
    def to_device(self, device: Any = None, *, device_prefetch: Count = 2) -> "TorchDeviceFeed":
        """Return the batches on a torch device, the next few already there while a step runs. Needs torch 2.7 or later.

        They are the batches of `to_torch`. `stats()` returns a `DeviceStats`. The first batch is fetched in the
        caller's thread, where frameworks may start and processes may be forked; the others in a thread that ends with
        the loop.

        Args:
            device: torch's name of the device, "tpu" with TorchTPU; by default the accelerator if there is one, else
                the CPU. XLA devices are for `to_xla`.
            device_prefetch: batches on the device ahead of the one in use; each takes device memory.

        Raises:
            MissingExtraError: torch is not installed, or torch_tpu for "tpu".
            OptionError: device_prefetch is below 1; or for "tpu", torch_tpu finds no TPU or is not Google's package.
        """
        from tpufeed.adapters.torch.device import TorchDeviceFeed

        return TorchDeviceFeed(self, device, device_prefetch)

    @checked(_READING)
    def to_xla(
        self, *, device: Any = None, sharding: Any = None, device_prefetch: Count = 2, check_ranks: bool = True
    ) -> "XlaFeed":
        """Return the batches on an XLA device of torch_xla, the next few already there while a step runs.

        image is uint8 (batch, height, width, 3), label int64 (batch,), on the device; `to_device_float` converts images
        for a model. Strings stay on the host. `stats()` returns a `DeviceStats`.

        Inside `torch_xla.launch` the world is torch_xla's.

        Args:
            device: device of the batches; by default `torch_xla.device()` of the thread that iterates.
            sharding: under SPMD, a `ShardingSpec` for each column by name, None for a column that every device holds
                whole; or one spec for all columns, fitted to the axes of each tensor. A mesh of several axes, of which
                a spec names only some, leaves labels whole on every device.
            device_prefetch: batches on the device ahead of the one in use; each takes device memory.
            check_ranks: False if only some of the ranks iterate this feed: then ranks do not compare.

        Raises:
            MissingExtraError: torch_xla is not installed.
            UsageError: tensorflow was imported before torch_xla.
            OptionError: an option does not fit; raised with the first batch if that depends on the ranks.
        """
        from tpufeed.adapters.xla.loader import XlaFeed

        return XlaFeed(self, device, sharding, device_prefetch, check_ranks)

    @checked(_READING)
    def to_jax(self, sharding: Any = None, *, device_prefetch: Count = 2) -> "JaxFeed":
        """Return the batches as global `jax.Array`s, the next few already on the devices while a step runs.

        image is uint8 (rows, height, width, 3), label int32 (rows,), or int64 if JAX is told to use it; strings stay
        numpy arrays of this process's rows. `rows` is `batch_size` times the number of ranks. `to_device_float`
        converts images for a model. `stats()` returns a `DeviceStats`.

        Each process reads the rows that its devices hold; processes that hold the same rows, as along a model axis, are
        one rank and read the same samples. A `world` given by hand decides which samples are read; the shape of an
        array still follows from the sharding.

        Args:
            sharding: sharding of the images: a `NamedSharding` (labels use only the axes that they have); or a `Mesh`,
                over whose first axis rows are split. By default the mesh that `jax.set_mesh` has set when an
                iteration begins, else all devices of all processes in a mesh of one axis, "data".
            device_prefetch: batches on the devices ahead of the one in use; each takes device memory.

        Raises:
            MissingExtraError: JAX is not installed.
            OptionError: `sharding` is something else; or, with the first batch, it does not fit the batch.
        """
        from tpufeed.adapters.jax.loader import JaxFeed

        return JaxFeed(self, sharding, device_prefetch)

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
        variant; with `repeat` one iteration never ends. It begins at the place that `load_state_dict` was given.

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

        return tf_feed(self, direct, deterministic, service, sharding, finish)

    def finish(self, batch: Mapping[str, Any]) -> Any:
        """Return a batch of `to_tf(finish=False)` as `to_tf()` gives it: with the device ops applied, on the device.

        Call it within a `tf.function`, best with `jit_compile=True`, or within a Keras model's `train_step`.
        """
        from tpufeed.adapters.tf.arrays import ARRAYS

        if self.device_ops is not None and self.device_ops.mixing is not None:
            self.keep_classes("the function that calls finish()")
        return self.form.package(self.run_device_ops(batch, ARRAYS))

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
        3) and int64 of shape (batch,), or the image alone if there are no labels. With a mask, which `remainder="pad"`
        and `max_bad_records` add, float32 sample weights of shape (batch,) come third: 0 for padding, else 1, so that
        padding counts in no loss and in no weighted metric.

        Each epoch of `fit` is the next epoch of the dataset; so is each call of `evaluate` and `predict`, even if it
        takes only some steps. The batch from which Keras builds a model comes again. With `repeat=True`, give `fit` its
        `steps_per_epoch`. `keras_state` keeps the place of a `fit`.

        Args:
            class_weight: the weight of each class by its id; other classes have 1, and padding stays at 0. Keras' own
                `class_weight` cannot be given together with a mask.

        Raises:
            MissingExtraError: Keras is not installed.
            OptionError: an option does not fit the loader's; Keras 2; Keras' backend is not installed.
        """
        from tpufeed.adapters.keras.dataset import keras_feed

        return keras_feed(self, class_weight)

    @checked()
    def set_epoch(self, epoch: Epoch) -> None:
        self.end_iteration(SUPERSEDED)
        if epoch != self._next[0]:
            self._sampler = self._sampler.restarted(epoch)
            self._move(epoch, 0)
        else:
            self._supersede([opened for opened in self._opened if opened.begun])

    def iterate(self, *, ahead: bool = False, as_dict: bool = False, on_device: bool = False) -> "EpochIterator":
        """Return the next epoch as adapters want it, see `EpochIterator`."""
        return EpochIterator(self, ahead=ahead, as_dict=as_dict, on_device=on_device)

    def run_device_ops(self, columns: Mapping[str, Any], arrays: Arrays) -> Mapping[str, Any]:
        """Return the columns of a batch of `iterate(on_device=True)`, on a device, with the device ops applied.

        Args:
            columns: the columns by name.
            arrays: functions of the columns' framework.
        """
        return columns if self.device_ops is None else {**columns, **self.device_ops.run(columns, arrays)}

    def batch_form(self, on_device: bool) -> tuple[BatchForm, list[Column]]:
        """Return the form of the batches of `iterate(on_device=on_device)`, and their columns."""
        ops = self.device_ops if on_device else None
        if ops is None:
            return self.form, [self._columns[name] for name in self.form.names]
        sent = self._columns | {IMAGE: Column(IMAGE, "uint8", (*ops.ops.size, 3))}
        sent |= {column.name: column for column in self.columns.every if column.name == LABEL}
        columns = [*(sent[name] for name in self.form.names), Column(DEVICE_NUMBERS, "float32", (ops.width,))]
        return BatchForm((*self.form.names, DEVICE_NUMBERS), as_dict=True), columns

    def lead(self, iteration: Iteration | None) -> None:
        """Make an iteration the newest, and end earlier ones. Pass None if it takes nothing ahead of its loop."""
        self.end_iteration(REPLACED)
        for opened in self._opened:
            if opened.begun:
                opened.close(REPLACED)
        # With `repeat` batches that were taken ahead may be of a later epoch. They do not count.
        if self.options.repeat and self._handed is not None and self._next[0] != self._handed.epoch + 1:
            self.set_epoch(self._handed.epoch + 1)
        self._ahead_of_loop = None if iteration is None else weakref.ref(iteration)

    def taken(self) -> "EpochPlace":
        """Return the place after the batch that the newest iteration took last, for a later `hand_out`."""
        current = self._current
        assert current is not None, "one was opened"
        return EpochPlace(current.cursor.epoch, current.samples, current.left)

    def start_prefetch(self, on_device: bool = False) -> None:
        """Prepare the first batches of the next epoch, without beginning it."""
        try:
            self._open_next(self._open_executor(on_device), ahead=True).submit(self._prefetch)
        except BaseException:
            self._ahead = None  # it may have stopped in the middle of a batch
            raise

    @checked()
    def state_dict(self, batches: Number | None = None) -> dict[str, Any]:
        """Return the place of the training loop as plain data. It counts batches handed out, not batches prefetched.

        Args:
            batches: number of batches that the loop has had of the newest iteration. Give it if a framework prefetches
                by itself, as TensorFlow does without `to_tf(deterministic=True)`.
        """
        if self.uncounted:
            raise OptionError(self.uncounted)
        return self.state_at(*(self._place if batches is None else self.place_after(*self.began, batches)))

    @property
    def is_placed(self) -> bool:
        """True if `load_state_dict` or `set_epoch` said where to begin, and no iteration has begun since."""
        return self._current is None and self._next != (0, 0)

    def place_after(self, epoch: int, samples: int, batches: int) -> tuple[int, int]:
        """Return epoch and samples of the whole world after `batches` batches of an iteration that began there."""
        first, whole, size = self.batches_from(samples), self.batches_from(0), self.batch_size * self.world.size
        if batches <= first:
            return epoch, samples + batches * size
        epochs, batches = divmod(batches - first, whole)
        return epoch + 1 + epochs, batches * size

    def state_at(self, epoch: int, samples: int) -> dict[str, Any]:
        """Return the state after `samples` samples of the whole world in `epoch`."""
        return self._sampler.state(self.world, epoch, samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise OptionError(f"a state is a dict from state_dict(), not {format_value(state)}")
        sampler = self._sampler.resumed(state, self.world)
        names = sampler.training.classes.names
        if self._of_classes and names != self.class_names:
            raise OptionError(
                f"{self.label}: the state has the classes {format_value(list(names))}, and {self._of_classes} was made "
                f"for {format_value(list(self.class_names))}: make a Loader, and load the state before anything else"
            )
        self.end_iteration(SUPERSEDED)
        self._take(sampler)
        self._move(sampler.training.epoch, sampler.training.samples)

    def keep_classes(self, made: str) -> None:
        """Refuse states with other classes from now on: `made`, as messages name it, was made for the present ones."""
        self._of_classes = made

    def epoch_spec(self) -> EpochSpec:
        """Return what all ranks must agree on before they begin the epoch that was opened last."""
        current = self._current
        assert current is not None, "one was opened"
        order = self.state_at(current.cursor.epoch, current.cursor.share.samples_after(0)) | {
            "remainder": self.options.remainder,
            "columns": [f"{name} {self._columns[name].shape}" for name in self.form.names],
        }
        text = ", ".join(f"{name} {value}" for name, value in order.items())
        return EpochSpec(self.world.rank, len(current.cursor.share), self.batch_size, text)

    def stats(self) -> LoaderStats:
        if self.uncounted:
            raise OptionError(self.uncounted)
        stats = self._stats
        return replace(stats, ready=stats.ready / max(1, stats.batches), bad_records=len(self._bad))

    def close(self) -> None:
        """Stop the workers; any thread may call it. A loader that is iterated again starts new ones.

        Workers that another thread is just starting are not stopped.
        """
        self.end_iteration(CLOSED)
        executor, self._executor = self._executor, None
        for epoch in (self._current, self._ahead):
            if epoch is not None:
                epoch.close()
        if executor is not None:
            executor.close()
        for opened in tuple(self._opened):  # with device ops, an iteration may still have workers of its own
            if not opened.executor.closed:
                opened.executor.close()

    def _facts(self) -> dict[str, Any]:
        epoch, samples = self._place
        columns = {name: self._columns[name] for name in self.form.names}
        return {
            "dataset": self.label,
            "split": self.split,
            "batch_size": self.batch_size,
            "columns": {name: f"{each.dtype} {(self.batch_size, *each.shape)}" for name, each in columns.items()},
            "ops": list(map(repr, self.options.ops or ())),
            "device_ops": list(map(repr, self.options.device_ops or ())),
            "classes": self.class_names,
            "place": f"epoch {epoch}, {samples:,} samples",
        }

    def __repr__(self) -> str:
        epoch, samples = self._place
        return (
            f"{type(self).__name__}({self.label!r}, {self.split!r}, batch_size={self.batch_size}, "
            f"epoch={epoch}, samples={samples})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: getattr(self.options, name) for name in LoaderOptions.__slots__}
        place, current = self._place, self._current
        left = self._handed.left if self._handed is not None else current is None or current.left
        state = place if left else (place[0] + 1, 0), self._sampler.training
        return partial(type(self), **options), (self._given, self.split), state

    def __setstate__(self, state: tuple[tuple[int, int], Training]) -> None:
        self._next, training = state
        self._take(self._sampler.continued(training))

    @property
    def _place(self) -> tuple[int, int]:
        """Epoch and samples of the training loop."""
        if self._handed is not None:
            return self._handed.epoch, self._handed.samples
        current = self._current
        return self._next if current is None else (current.cursor.epoch, current.samples)

    def _make_decoder(self, sources: Sequence[SampleSource]) -> None:
        """Decode samples of these sources from now on. Raises OptionError if the options do not fit them."""
        decoder = self._decoder = BatchDecoder(sources, self.options, self._workers.threads)
        columns = self.columns = decoder.columns
        self.pipeline, self.device_ops = decoder.decoders[0].pipelines[0], decoder.decoders[0].device_ops
        masked = self.options.remainder == "pad" or self.options.max_bad_records > 0
        self.form = BatchForm((*columns.names, *((columns.mask,) if masked else ())), self.options.columns is None)
        own = [*columns.every, Column(SAMPLE, "int64"), Column(columns.mask, "bool")]
        self._columns: dict[str, Column] = {column.name: column for column in own}
        if self.device_ops is not None and self.device_ops.mixing is not None:
            self._columns[LABEL] = Column(LABEL, "float32", (self.device_ops.mixing.classes,))
        self.pixels = frozenset(column.name for column in columns.pooled)

    def _take(self, sampler: Sampler) -> None:
        """Read the samples of `sampler` from now on: a state may bring a mixture other classes and salts."""
        if sampler.sources is not self.sources:
            self._make_decoder(sampler.sources)
            executor, self._executor = self._executor, None
            if executor is not None:
                executor.close()
        self._sampler = sampler

    def _move(self, epoch: int, samples: int) -> None:
        self._supersede(list(self._opened))
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None
        self._next = epoch, samples

    def _supersede(self, iterations: "list[EpochPrefetch]") -> None:
        for opened in iterations:
            opened.close(SUPERSEDED)
            if opened is self._current:
                self._current = None
        self._handed = None

    def _count(self, batch: DecodedBatch, asked: float, ready: int) -> None:
        """Count a batch that is handed out now. It was asked for at `asked`, when `ready` batches were ready.

        Raises RecordError if it has one bad record too many.
        """
        now, stats = perf_counter(), self._stats
        self._first_asked = self._first_asked or asked
        stats.seconds = now - self._first_asked
        stats.wait_seconds += now - asked
        stats.ready += ready  # `stats` takes the average
        stats.waits += not ready
        stats.batches += 1
        stats.samples += len(next(iter(batch.arrays.values())))
        stats.read_seconds += batch.cost.read_seconds
        stats.decode_seconds += batch.cost.decode_seconds
        stats.read_bytes += batch.cost.read_bytes
        stats.dropped_boxes += batch.cost.dropped_boxes
        stats.requested_records += batch.requested_records
        for record in batch.bad:
            if record.where in self._bad:
                continue
            most = self.options.max_bad_records
            if len(self._bad) == most:
                raise RecordError(
                    f"{most + 1} bad records, more than max_bad_records={most}; the last one: {record.message}. Run "
                    "tpufeed verify, which lists all damage"
                )
            self._bad.add(record.where)
            _logger.warning("bad record skipped, %d of at most %d: %s", len(self._bad), most, record.message)

    def _open_executor(self, on_device: bool) -> Executor:
        """Return workers that leave the device ops to a device, or run them; start them if need be."""
        if self.device_ops is not None and on_device != self._decoder.on_device:
            self._decoder = BatchDecoder(self.sources, self.options, self._workers.threads, on_device=on_device)
            executor, self._executor = self._executor, None
            if self._ahead is not None:
                self._ahead.close()
            if executor is not None and not any(opened.begun and not opened.closed for opened in self._opened):
                executor.close()  # else an iteration still takes batches from it
        if self._executor is not None and not self._executor.closed:
            return self._executor
        lanes = self._sampler.stream(self.world).lanes // self.world.size
        processes, threads = self._workers.processes, self._workers.threads
        self._check_memory()
        try:
            pool = BufferPool(self._decoder.layout, self._prefetch + _FEWEST_AHEAD, shared=processes > 0)
            sources, nodes = self._sampler.sources, self._workers.nodes
            shares, kept = self._sampler.shares, tuple(source.kept for source in sources)
            config = WorkerConfig(shares, kept, self.options, threads, lanes, pool.file, self._decoder.on_device)
            self._stats.buffer_bytes = self._prefetch * self._decoder.layout.stride
            if processes:
                self._executor = ProcessExecutor(sources, config, processes, pool, self._copies_shards, nodes)
            else:
                self._executor = ThreadExecutor(sources, config, self._decoder, pool)
        except TimeoutError as error:
            raise LoaderError(
                f"{self.label}: the loader's workers did not start within {self.options.timeout_seconds:g} s; give a "
                "larger timeout_seconds="
            ) from error
        except (OSError, StoreError) as error:
            if limit := limit_reached(error):
                raise LoaderError(f"{self.label}: the loader's workers cannot start: {limit}") from error
            raise
        return self._executor

    def _most_ahead(self, batch_bytes: int) -> int:
        """Return how many batches may be ahead: large batches on many cores need more than a few gigabytes."""
        left = memory_left()
        if left is None:
            return _AHEAD_BYTES // batch_bytes
        # Half of the memory at most: workers and local copies take memory, too.
        free = left // self._workers.ranks
        return min(free // 2 // batch_bytes - _IN_USE, max(_AHEAD_BYTES, free // _AHEAD_SHARE) // batch_bytes)

    def _check_memory(self) -> None:
        """Raise LoaderError if the batches cannot be in memory: the system would kill this process without a word."""
        batch, left = self._decoder.layout.stride, memory_left()
        count = self._prefetch + _IN_USE
        if left is None or count * batch <= left + free_swap():
            return
        limit = memory_limit()
        most = "" if limit is None else f" of {limit / 1e6:,.0f} MB"
        raise LoaderError(
            f"{self.label}: {count} batches of {batch / 1e6:,.0f} MB, {self._prefetch} of them ahead, do not fit into "
            f"memory: {left / 1e6:,.0f} MB{most} are free. Use a smaller batch_size= or prefetch=, or smaller images"
        )

    def _open_next(self, executor: Executor, ahead: bool = False) -> "EpochPrefetch":
        """Return the next epoch for an iterator; or, with `ahead`, for preparing its batches before any iterator."""
        found = self._ahead
        if found is None or found.executor is not executor or found.cursor.epoch != self._next[0]:
            found = EpochPrefetch(self._sampler.cursor(self.world, *self._next), executor)
        self._ahead = found if ahead else None
        if not ahead:
            self._opened.add(found)
        return found


@dataclass(frozen=True, slots=True)
class EpochPlace:
    """The place after a batch: epoch, samples of the whole world, and batches left in the epoch."""

    epoch: int
    samples: int
    left: int


class EpochIterator(Iterator[Batch]):
    """The batches of one epoch, and with `repeat` of all later ones. Any thread may close it.

    Leaving it early needs no `close`. The epoch begins with its first batch: then the loader moves on to the next
    epoch, and an earlier iteration ends.

    Args:
        loader: the loader.
        ahead: True if batches are taken ahead of the training loop. The caller then ends earlier iterations with
            `lead`, and says what reaches the loop with `hand_out`.
        as_dict: True for batches as dicts of columns, whatever the loader's form.
        on_device: True for batches on which device ops still have to run, see `Loader.run_device_ops`.
    """

    _begun = False

    def __init__(self, loader: Loader, *, ahead: bool = False, as_dict: bool = False, on_device: bool = False) -> None:
        self._loader, self._leads = loader, ahead
        form = loader.batch_form(on_device)[0] if on_device else loader.form
        self._form = replace(form, as_dict=True) if as_dict else form
        self._prefetch = loader._open_next(loader._open_executor(on_device))
        if ahead or loader._ahead_of_loop is None:
            loader._current = self._prefetch

    @property
    def epoch(self) -> int:
        """Number of the last batch's epoch."""
        return self._prefetch.cursor.epoch

    def __len__(self) -> int:
        """Return the number of batches left of the epoch."""
        return self._prefetch.left

    @property
    def was_moved(self) -> bool:
        """True if this iteration cannot continue because the loader was moved, or another iteration has begun."""
        return self._prefetch.closed in (SUPERSEDED, REPLACED)

    def continue_after(self, epoch: int) -> None:
        """Make the epoch after `epoch`, that of the last batch used, the loader's next one.

        With `repeat`, batches taken since may be of later epochs. They do not count, unless the loader was moved
        meanwhile, or another iteration has begun.
        """
        loader = self._loader
        if loader.options.repeat and loader._current is self._prefetch and self.epoch != epoch:
            loader.set_epoch(epoch + 1)

    def __next__(self) -> Batch:
        loader, prefetch = self._loader, self._prefetch
        if not prefetch.left and not loader.options.repeat:
            raise StopIteration
        if prefetch.closed or prefetch.executor.closed:
            raise LoaderError(prefetch.closed or CLOSED)
        if not prefetch.left:
            prefetch = self._prefetch = loader._current = loader._open_next(prefetch.executor)
        if not prefetch.begun:
            prefetch = self._begin()
        asked = perf_counter()
        try:
            # Until shards are copied each record is a request: only a few batches at first.
            ahead = loader._prefetch
            if loader._copies_shards:
                ahead = min(ahead, _FIRST_AHEAD + 2 * prefetch.returned)
            room = prefetch.submit(ahead + 1)
            if room > 0 and loader._next == (prefetch.cursor.epoch + 1, 0):
                # With the same workers: another thread may just have closed the loader, and nobody would stop new ones.
                with suppress(OptionError):  # a mixture that cannot read that epoch says so when its turn comes
                    loader._open_next(prefetch.executor, ahead=True).submit(room)
            futures = prefetch.futures
            ready = next((number for number, future in enumerate(futures) if not future.done()), len(futures))
            batch = futures.popleft().result(loader.options.timeout_seconds)
            loader._count(batch, asked, ready)
        except BatchTimeout:
            prefetch.close()
            prefetch.executor.close(wait=False)  # drops everything prepared
            raise LoaderError(
                f"no batch for {loader.options.timeout_seconds:g} s. A disk, the network or one of your ops may be "
                "hanging. If a batch takes that long, give a larger timeout_seconds"
            ) from None
        except BaseException:
            prefetch.close()
            loader._ahead = None  # it may have stopped in the middle of a batch
            raise
        prefetch.returned += 1
        prefetch.left -= 1
        if loader._copies_shards and prefetch.returned % prefetch.cursor.due_every == 1 % prefetch.cursor.due_every:
            # Not earlier: copying whole shards would slow down the records of the first batch.
            prefetch.executor.fetch(prefetch.cursor.due_shards(prefetch.returned - 1))
        packaged: Batch = self._form.package(batch.arrays)
        return packaged

    def _begin(self) -> "EpochPrefetch":
        """Begin the epoch: from now on the loader's next iteration is the one after it."""
        loader, prefetch = self._loader, self._prefetch
        if not self._leads:
            loader.lead(None)
            loader._handed = None
        if loader._next[0] != prefetch.cursor.epoch:  # another iteration, opened just as early, has begun that epoch
            prefetch.close()
            prefetch = self._prefetch = loader._open_next(prefetch.executor)
        loader._current = prefetch
        if not self._begun:
            self._begun, loader.uncounted = True, ""
            loader.began = prefetch.cursor.epoch, prefetch.cursor.share.start
        prefetch.begun = True
        loader._next = prefetch.cursor.epoch + 1, 0
        return prefetch

    def end(self) -> None:
        """Close the iterator, and stop the loader's workers if no other iteration needs them."""
        self.close()
        if self._loader._current is self._prefetch:
            self._loader.close()

    def close(self, why: str = CLOSED) -> None:
        """Cancel the batches in work. Asking for more raises LoaderError(`why`)."""
        self._prefetch.close(why)

    def __del__(self) -> None:
        if hasattr(self, "_prefetch"):  # `__init__` may have failed
            self._prefetch.close()


class EpochPrefetch:
    """Batches of an epoch that workers are preparing, in order.

    It refers to an executor, but not to the loader, which refers to it: in a cycle, a dropped loader would keep its
    workers until the next garbage collection.
    """

    def __init__(self, cursor: Cursor, executor: Executor) -> None:
        self.cursor, self.executor = cursor, executor
        self.futures: deque[BatchFuture] = deque()
        self.begun = False
        self.returned, self.left = 0, len(cursor.share)  # batches handed out, and batches still to come
        self.closed = ""  # or the reason
        self._requests = cursor.requests()

    @property
    def samples(self) -> int:
        """Samples of the epoch that the whole world has been given."""
        return self.cursor.share.samples_after(self.returned)

    def submit(self, batches: int) -> int:
        """Keep `batches` batches in work. Return how many of them are missing because the epoch ends."""
        while len(self.futures) < batches and (request := next(self._requests, None)) is not None:
            self.futures.append(self.executor.submit(request))
        return batches - len(self.futures)

    def close(self, why: str = CLOSED) -> None:
        """Cancel the batches in work."""
        self.closed = self.closed or why
        for future in tuple(self.futures):
            future.cancel()
