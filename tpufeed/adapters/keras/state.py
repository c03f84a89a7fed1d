"""Keras 3: find the place of a feed from the number of steps that the optimizer has taken."""

import logging
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import keras
import msgspec

from tpufeed.adapters.feed import ENDLESS, Feed, stream_of
from tpufeed.errors import DamageError, ObjectExistsError, ObjectNotFoundError, OptionError
from tpufeed.storage.store import Store, open_store
from tpufeed.stream.host import HostStream

_logger = logging.getLogger(__name__)

_REST_IS_OVER = "the rest of an epoch is over"  # truthy for `stop_training`, and not another callback's True

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Size = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """The place of a training: `steps_left` steps before the end of Keras' `epoch`, and at `state` in the feed."""

    epoch: int
    steps_left: int
    state: dict[str, Any]


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a training in which batches and epochs keep their sizes.

    Attributes:
        count: the optimizer's step count where the segment begins.
        epoch: Keras' epoch there.
        steps_left: steps left of this epoch there.
        steps: steps of each later epoch of Keras.
        state: the feed's state there.
        batches_left: batches left of the feed's epoch there.
        batches: batches of each later epoch of the feed.
        batch_samples: samples in a batch of the whole world.
        next_begun: for a mixture, where in its stream the feed's next epoch begins.
    """

    count: _Count
    epoch: _Count
    steps_left: _Size
    steps: _Size
    state: dict[str, Any]
    batches_left: _Size
    batches: _Size
    batch_samples: _Size
    next_begun: _Count = 0

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes that stay the same in a segment."""
        return self.steps, self.batches, self.batch_samples

    def find(self, count: int) -> TrainingPlace:
        """Return the place at which the optimizer's step count is `count`."""
        steps = count - self.count
        epochs, done = _passed(steps, self.steps_left, self.steps)
        steps_left = (self.steps if epochs else self.steps_left) - done
        feed_epochs, done = _passed(steps, self.batches_left, self.batches)
        samples = (0 if feed_epochs else self.state["samples"]) + done * self.batch_samples
        moved = {"epoch": self.state["epoch"] + feed_epochs, "samples": samples}
        if feed_epochs and "begun" in self.state:  # of a mixture
            moved["begun"] = self.next_begun + (feed_epochs - 1) * self.state["epoch_samples"]
        return TrainingPlace(self.epoch + epochs, steps_left, self.state | moved)


def _passed(steps: int, left: int, whole: int) -> tuple[int, int]:
    """Return how many epochs end within `steps`, and the steps after them. The first epoch ends after `left` steps."""
    if steps < left:
        return 0, steps
    epochs, done = divmod(steps - left, whole)
    return 1 + epochs, done


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file: the segments of a training, in the order of their counts."""

    version: Literal[1]
    segments: list[Segment]


_RECORD = msgspec.json.Decoder(Record)


class KerasState(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Callback of Keras, see `keras_state`."""

    def __init__(self, loader: Feed, path: str | Path) -> None:
        super().__init__()
        stream = stream_of(loader)
        if stream is None:
            raise OptionError(
                f"keras_state takes the tpufeed.Loader whose to_keras() or to_tf() fit is given, not a "
                f"{type(loader).__name__}"
            )
        feed = None if stream.moved_by is None else stream.moved_by()
        if feed is None:
            raise OptionError(
                "keras_state moves the feed that to_keras(), or to_tf() without direct=True, made of the loader, but "
                "there is none: call that first, and keep the result"
            )
        if feed.was_placed:
            raise OptionError("keras_state finds the feed's place itself: leave out load_state_dict and set_epoch")
        self._feed = feed
        if isinstance(feed, keras.utils.PyDataset):
            feed.cuts_epochs = True
        self._url = str(path)
        self._segments: list[Segment] = []
        self._written: list[Segment] = []
        self._count = 0
        self._epochs = 0  # epochs that this fit has begun
        self._last: int | None = None  # last step of a shortened epoch, if the feed cannot end it
        self._quiet: warnings.catch_warnings[None] | None = None  # while such an epoch lasts

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the epoch to begin with, perhaps in its middle."""
        if not hasattr(self.model, "_initial_epoch"):
            raise OptionError(f"keras_state is for models of Keras 3, not of {type(self.model).__module__}")
        steps, batches = self.params["steps"], len(self._stream)
        known = steps not in (None, ENDLESS)
        if not known or not (self._stream.options.repeat or steps == batches):
            raise OptionError(
                f"fit takes {steps if known else 'no known number of'} steps per epoch, and the feed has {batches} "
                "batches: give both steps_per_epoch to fit and repeat=True to the dataset, or neither"
            )
        self._epochs, self._count = 0, self._counted()
        self._segments = self._written = self._read()
        if self._segments:
            place, restored = self._resume(), self.model._initial_epoch or 0
            if restored > place.epoch and self._count == self._segments[0].count:
                raise OptionError(
                    f"epoch {restored} was restored, but not the optimizer, whose count is {self._count} as at the "
                    "beginning: restore it together with the weights"
                )
            # As Keras' own BackupAndRestore does: `fit` reads it after `on_train_begin`, and has no public way.
            self.model._initial_epoch = place.epoch
        elif self._count:
            _logger.warning(
                "%s does not exist, so the feed begins with a whole epoch, though the optimizer has taken %d steps",
                self._url,
                self._count,
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Make the epoch begin at its place in the feed."""
        first, count = not self._epochs, self._counted()
        if first and not self._segments:  # a new training, in whose feed epochs have Keras' numbers if equally long
            stream, steps = self._stream, self._taken(self.params["steps"])
            zero = self._segment_at(0, 0, steps, stream.state_at(0, 0), len(stream))
            self._segments = [self._segment(zero.find(epoch * steps))]
        elif first and count != self._count:  # a callback after this one has restored weights
            self._count = count
            self._resume()
        if first and self._written and not count:
            _logger.warning(
                "%s: the training begins again at epoch %d, as the optimizer has taken no step. To continue, restore "
                "the optimizer with the weights",
                self._url,
                epoch,
            )
        place, steps = self._segments[-1].find(count), self._segments[-1].steps
        if place.epoch != epoch or not (first or place.steps_left == steps):
            raise OptionError(
                f"epoch {epoch} begins, but after the {count} steps that the optimizer counts {place.steps_left} of "
                f"epoch {place.epoch} are left. Leave out initial_epoch, put keras_state after the callback that "
                "restores weights, and let the optimizer take one step for each batch"
            )
        if first and self._segments != self._written:
            store, name = self._file()
            data = msgspec.json.format(msgspec.json.encode(Record(1, self._segments)))
            with suppress(ObjectExistsError):  # another process of this training has just written the same
                store.put(name, data, store.stat(name))
            self._written = self._segments
        self._last = None
        if place.steps_left == steps:
            self._feed.begin_at(place.state)
        elif isinstance(self._feed, keras.utils.PyDataset):
            self._feed.begin_at(place.state, place.steps_left)
            self._quiet = warnings.catch_warnings()
            self._quiet.__enter__()
            warnings.filterwarnings("ignore", "Your input ran out of data")
        else:
            # Keras tells callbacks the first of the steps that it executes together: the last such group begins there.
            together = self.model.steps_per_execution
            self._last = (place.steps_left - 1) // together * together
            self._feed.begin_at(place.state)
        self._epochs += 1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Stop after the last step of an epoch that was resumed in its middle.

        If the feed ended it, TensorFlow would count a step, and draw random numbers for it, before it finds no batch,
        and Keras would warn that data ran out.
        """
        if batch:
            self._check_feed()
        if batch == self._last:
            self.model.stop_training = _REST_IS_OVER

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Let the next epoch follow, unless another callback stops the training."""
        self._check_feed()
        if self._quiet is not None:
            self._quiet.__exit__(None, None, None)
            self._quiet = None
        if self.model.stop_training is _REST_IS_OVER:
            self.model.stop_training = False

    def on_train_end(self, logs: Any = None) -> None:
        """Leave the feed where the training ended. Warn if it had ended before."""
        if not self._epochs:
            _logger.warning(
                "%d epochs were trained already: give fit more epochs to continue", self.model._initial_epoch or 0
            )
        else:
            self._feed.begin_at(self._segments[-1].find(self._counted()).state)
        self.model._initial_epoch = None

    def _check_feed(self) -> None:
        if self._epochs == 1 and not self._feed.begun:
            raise OptionError("fit and keras_state were given different feeds: give both the same, or fit a map of it")

    @property
    def _stream(self) -> HostStream:
        stream: HostStream = self._feed.stream  # raises if the dataset was dropped
        return stream

    def _taken(self, steps: int) -> int:
        """Return the steps that Keras takes for `steps`: whole groups of steps per execution if the feed is endless."""
        together: int = self.model.steps_per_execution if self._stream.options.repeat else 1
        return -(-steps // together) * together

    def _counted(self) -> int:
        """Return the count of steps taken. `iterations` leaves out steps that only accumulate gradients."""
        optimizer = self.model.optimizer
        if optimizer is None or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise OptionError(
                "keras_state needs an optimizer that counts every step. For float16 Keras uses one that leaves out "
                "steps whose gradients overflow: use mixed_bfloat16, or compile with auto_scale_loss=False"
            )
        return int(keras.ops.convert_to_numpy(optimizer._iterations))

    def _resume(self) -> TrainingPlace:
        """Return the place that belongs to the optimizer's count. If sizes have changed, a new segment begins there."""
        begun = [segment for segment in self._written if segment.count <= self._count]
        if not begun:
            raise OptionError(
                f"{self._url}: this training began when the optimizer had taken {self._written[0].count} steps, and "
                f"now it has taken {self._count}: restore its weights, or give another path to begin another training"
            )
        place = begun[-1].find(self._count)
        try:
            segment = self._segment(place)
        except OptionError as error:
            raise OptionError(f"{self._url}: {error}. To begin another training, give another path") from error
        same = segment.sizes == begun[-1].sizes and segment.find(self._count) == place
        self._segments = begun if same else [*begun, segment]
        return segment.find(self._count)

    def _segment(self, place: TrainingPlace) -> Segment:
        """Move the feed to a place, and return the segment that begins there."""
        stream, repeats = self._stream, self._stream.options.repeat
        self._feed.load_state_dict(place.state)
        state = stream.state_dict()
        left = stream.batches_from(state["samples"])
        # The feed is one epoch further if the rest of an epoch does not make a batch of the present size.
        further = 0 if repeats else state["epoch"] - place.state["epoch"]
        steps_left = self._taken(place.steps_left) if repeats else left
        return self._segment_at(self._count, place.epoch + further, steps_left, state, left)

    def _segment_at(self, count: int, epoch: int, steps_left: int, state: dict[str, Any], batches_left: int) -> Segment:
        """Return the segment with the present sizes that begins there."""
        stream = self._stream
        return Segment(
            count=count,
            epoch=epoch,
            steps_left=steps_left,
            steps=self._taken(self.params["steps"]),
            state=state,
            batches_left=batches_left,
            batches=len(stream),
            batch_samples=stream.batch_size * stream.world.size,
            next_begun=stream.state_at(state["epoch"] + 1, 0).get("begun", 0),
        )

    def _read(self) -> list[Segment]:
        store, name = self._file()
        try:
            return _RECORD.decode(store.read(name)).segments
        except ObjectNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise DamageError(
                f"{self._url} is not what keras_state wrote: {error}. To begin another training, give another path"
            ) from error

    def _file(self) -> tuple[Store, str]:
        folder, slash, name = self._url.rpartition("/")
        return open_store(folder + slash or "."), name
