"""The gRPC side of a server: reads and appends of zonal buckets, on the objects that its JSON side has, too."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import grpc
from crc32c import crc32c
from google.cloud import _storage_v2 as api
from google.protobuf.any_pb2 import Any
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status

from tests.gcs_server.messages import ApiError
from tests.gcs_server.objects import Conditions, StoredObject, Vault

_PIECE_BYTES = 64 << 10
_UNFINISHED = "unfinished"
_BUCKETS = "projects/_/buckets/"


@dataclass(slots=True)
class Fault:
    """What strikes streams of a method ("read" or "write") after so many bytes, or the answer to a put's "open".

    `kind` is the name of a gRPC status, "flip" (a byte differs from its CRC), "stall", "slow" (a 20th of
    a second a piece), or "redirect". `before` is called first.
    """

    method: str
    kind: str
    after_bytes: int = 0
    times: int = 1
    before: Callable[[], object] = lambda: None


class RapidServer:
    """A gRPC server on 127.0.0.1 in threads of this process, between `with`.

    Attributes:
        address: for STORAGE_EMULATOR_HOST_GRPC.
        faults: still to strike.
        struck: kinds of those that have.
        opened: a line for each stream: its method, the object, and the routing token it came with.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self.faults: list[Fault] = []
        self.struck: list[str] = []
        self.opened: list[str] = []
        self._lock, self._leaving = threading.Lock(), threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(64))
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "google.storage.v2.Storage",
                    {
                        "BidiReadObject": grpc.stream_stream_rpc_method_handler(
                            self._read, api.BidiReadObjectRequest.deserialize, api.BidiReadObjectResponse.serialize
                        ),
                        "BidiWriteObject": grpc.stream_stream_rpc_method_handler(
                            self._write, api.BidiWriteObjectRequest.deserialize, api.BidiWriteObjectResponse.serialize
                        ),
                    },
                )
            ]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "RapidServer":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._server.stop(0.5).wait()

    def _read(
        self, requests: Iterator[api.BidiReadObjectRequest], context: grpc.ServicerContext
    ) -> Iterator[api.BidiReadObjectResponse]:
        first = next(requests)
        spec = first.read_object_spec
        self._open("read", spec.object_, context)
        bucket = spec.bucket.removeprefix(_BUCKETS)
        live = self._vault.buckets.live(bucket, spec.object_)
        if live is None or spec.generation not in (0, live.generation):
            context.abort(grpc.StatusCode.NOT_FOUND, "No such object.")
        yield api.BidiReadObjectResponse(metadata=_described(live), read_handle=api.BidiReadHandle(handle=b"handle"))
        sent = 0
        while True:
            for wanted in first.read_ranges:
                if wanted.read_offset > len(live.data):
                    context.abort(grpc.StatusCode.OUT_OF_RANGE, "The read begins behind the object's end.")
                stop = min(len(live.data), wanted.read_offset + (wanted.read_length or len(live.data)))
                for at in range(wanted.read_offset, stop, _PIECE_BYTES) or [stop]:
                    data = bytes(live.data[at : min(at + _PIECE_BYTES, stop)])
                    checked = api.ChecksummedData(content=data, crc32c=crc32c(data))
                    if self._strike("read", sent, context) == "flip":
                        checked.content = bytes([data[0] ^ 1]) + data[1:]
                    sent += len(data)
                    of = api.ReadRange(read_offset=at, read_length=len(data), read_id=wanted.read_id)
                    piece = api.ObjectRangeData(
                        checksummed_data=checked, read_range=of, range_end=at + len(data) == stop
                    )
                    yield api.BidiReadObjectResponse(object_data_ranges=[piece])
            try:
                first = next(requests)
            except StopIteration:
                return

    def _write(
        self, requests: Iterator[api.BidiWriteObjectRequest], context: grpc.ServicerContext
    ) -> Iterator[api.BidiWriteObjectResponse]:
        first = next(requests)
        opened = self._take_up(first, context)
        self._strike("open", 0, context)
        data = bytearray(opened.data)
        handle = api.BidiWriteHandle(handle=b"handle")
        yield api.BidiWriteObjectResponse(resource=_described(opened), write_handle=handle)
        came = 0
        for request in requests:
            part = request.checksummed_data.content
            if part:
                if request.write_offset != len(data):
                    context.abort(grpc.StatusCode.OUT_OF_RANGE, f"{len(data)} bytes are there.")
                self._strike("write", came, context)
                if crc32c(part) != request.checksummed_data.crc32c:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The checksum does not match.")
                came += len(part)
                data += part
            if request.flush or request.finish_write:
                opened = self._keep(opened, bytes(data), request.finish_write)
            if request.finish_write:
                if "object_checksums" in request and request.object_checksums.crc32c != opened.crc:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The object's checksum does not match.")
                yield api.BidiWriteObjectResponse(resource=_described(opened))
            elif request.state_lookup:
                yield api.BidiWriteObjectResponse(persisted_size=len(opened.data))

    def _take_up(self, first: api.BidiWriteObjectRequest, context: grpc.ServicerContext) -> StoredObject:
        """The object that a stream writes: a new one, which can be read from now on, or one that it goes on with."""
        if "append_object_spec" in first:
            spec = first.append_object_spec
            self._open("write", spec.object_, context)
            live = self._vault.buckets.live(spec.bucket.removeprefix(_BUCKETS), spec.object_)
            if live is None or live.generation != spec.generation:
                context.abort(grpc.StatusCode.NOT_FOUND, "No such object.")
            return live
        named = first.write_object_spec.resource
        self._open("write", named.name, context)
        if not first.write_object_spec.appendable:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Objects of this bucket are appendable.")
        draft = StoredObject(named.bucket.removeprefix(_BUCKETS), named.name, b"", 0, attributes={_UNFINISHED: True})
        wanted = first.write_object_spec
        demands = Conditions(wanted.if_generation_match if "if_generation_match" in wanted else None)
        try:
            return self._vault.store(draft, demands)
        except ApiError as error:
            code = grpc.StatusCode.FAILED_PRECONDITION if error.status == 412 else grpc.StatusCode.NOT_FOUND
            context.abort(code, str(error))
            raise

    def _keep(self, opened: StoredObject, data: bytes, finish: bool) -> StoredObject:
        attributes = {} if finish else {_UNFINISHED: True}
        kept = replace(opened, data=data, crc=crc32c(data), attributes=attributes)
        self._vault.buckets.change(opened.bucket, opened.name, lambda _: kept)
        return kept

    def _open(self, method: str, name: str, context: grpc.ServicerContext) -> None:
        params = dict(context.invocation_metadata()).get("x-goog-request-params", "")
        with self._lock:
            self.opened.append(f"{method} {name} {params.partition('routing_token=')[2]}".strip())

    def _strike(self, method: str, done: int, context: grpc.ServicerContext) -> str:
        """Strike, where a fault is due; returns the kind of one that the caller carries out."""
        with self._lock:
            fault = next((each for each in self.faults if each.method == method and done >= each.after_bytes), None)
            if fault is None:
                return ""
            fault.times -= 1
            if not fault.times:
                self.faults.remove(fault)
            self.struck.append(fault.kind)
        fault.before()
        if fault.kind == "stall":
            self._leaving.wait()
        elif fault.kind == "slow":
            self._leaving.wait(0.05)
        elif fault.kind == "redirect":
            detail = Any()
            kinds = {"read": api.BidiReadObjectRedirectedError, "write": api.BidiWriteObjectRedirectedError}
            detail.Pack(kinds[method].pb(kinds[method](routing_token="elsewhere")))
            status = status_pb2.Status(code=code_pb2.ABORTED, message="Elsewhere.", details=[detail])
            context.abort_with_status(rpc_status.to_status(status))
        elif fault.kind != "flip":
            context.abort(grpc.StatusCode[fault.kind], "Struck.")
        return fault.kind


def _described(stored: StoredObject) -> api.Object:
    described = api.Object(
        name=stored.name,
        bucket=_BUCKETS + stored.bucket,
        generation=stored.generation,
        size=len(stored.data),
        checksums=api.ObjectChecksums(crc32c=stored.crc),
    )
    if not stored.attributes.get(_UNFINISHED):
        described.finalize_time = datetime.now(UTC)
    return described
