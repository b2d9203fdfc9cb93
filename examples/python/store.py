#!/usr/bin/env python3
"""Uses a Weir store with nothing but its published protocol.

    apt install python3-grpcio protobuf-compiler-grpc    (or: pip install grpcio grpcio-tools)
    ./store.py HOST:PORT [--ca CA.pem --token TOKEN]

The messages are made from control/rpc/proto at start, so there is nothing to install from Weir. With a
controller, CA and token are in its admin.json (fields `ca` and `token`).
"""

import argparse
import pathlib
import queue
import shutil
import struct
import subprocess
import sys
import tempfile

import grpc

PROTO = pathlib.Path(__file__).resolve().parents[2] / "control/rpc/proto"


def load_protocol():
    """Makes the Python modules of the protocol in a folder that goes with the process."""
    out = tempfile.TemporaryDirectory()
    file = "weir/store/v1/store.proto"
    plugin = shutil.which("grpc_python_plugin")
    if shutil.which("protoc") and plugin:
        compiler = ["protoc", f"--plugin=protoc-gen-grpc_python={plugin}"]
    else:
        compiler = [sys.executable, "-m", "grpc_tools.protoc"]
    made = subprocess.run([*compiler, f"-I{PROTO}", f"--python_out={out.name}", f"--grpc_python_out={out.name}", file])
    if made.returncode != 0:
        sys.exit(f"{file} could not be compiled")
    sys.path.insert(0, out.name)
    from weir.store.v1 import store_pb2, store_pb2_grpc

    return out, store_pb2, store_pb2_grpc


def connect(arguments):
    if arguments.ca is None:
        return grpc.insecure_channel(arguments.address), []
    credentials = grpc.ssl_channel_credentials(pathlib.Path(arguments.ca).read_bytes())
    name = ("grpc.ssl_target_name_override", "controller.weir.internal")
    metadata = [("authorization", f"Bearer {arguments.token}")] if arguments.token else []
    return grpc.secure_channel(arguments.address, credentials, options=[name]), metadata


class Store:
    """One stream of batches; each call here is a batch of one, answered in turn."""

    def __init__(self, stub, pb, metadata):
        self.pb, self.number = pb, 0
        self.batches = queue.Queue()
        self.answers = stub.Stream(iter(self.batches.get, None), metadata=metadata)
        # A client that the store knows: its requests may be repeated under their numbers.
        self.client, self.sequence = 0, 0
        self.client = self.submit(pb.Operation(open_client=pb.OpenClient())).opened

    def _ask(self, **body):
        self.number += 1
        self.batches.put(self.pb.ClientBatch(number=self.number, **body))
        answer = next(self.answers)
        if answer.HasField("problem"):
            sys.exit(f"the store: {answer.problem.message}")
        return answer

    def submit(self, operation):
        self.sequence += 1
        request = self.pb.Request(sequence=self.sequence, operation=operation)
        body = self.pb.SubmitRequest(client=self.client, settled_below=self.sequence, requests=[request])
        outcome = self._ask(submit=body).submitted.outcomes[0]
        if outcome.HasField("refused") and outcome.refused.kind != self.pb.Refused.TABLE_EXISTS:
            sys.exit(f"the store refuses: {outcome.refused.message}")
        return outcome

    def read(self, query, staleness_ms=0):
        body = self.pb.ReadRequest(queries=[query], staleness_ms=staleness_ms)
        return self._ask(read=body).read.answers[0]

    def write(self, table, key, **how):
        return self.submit(self.pb.Operation(write=self.pb.Write(table=table, key=key, **how)))

    def close(self):
        self.batches.put(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--ca")
    parser.add_argument("--token")
    arguments = parser.parse_args()
    folder, pb, rpc = load_protocol()
    channel, metadata = connect(arguments)
    stub = rpc.StoreStub(channel)
    store = Store(stub, pb, metadata)

    # Two tables: addresses refer to devices, and devices have columns.
    devices = pb.TableOptions(columns=True)
    store.submit(pb.Operation(create_table=pb.CreateTable(table="python/devices", options=devices)))
    addresses = pb.TableOptions(references=[pb.Reference(table="python/devices")])
    store.submit(pb.Operation(create_table=pb.CreateTable(table="python/addresses", options=addresses)))

    watch = stub.Watch(pb.WatchRequest(now=True, filters=[pb.WatchFilter(table="python/devices")]), metadata=metadata)
    next(watch)  # tells from where it goes on

    written = store.write("python/addresses", b"192.0.2.1", put=pb.Put(value=b"02:00:00:00:00:01")).written
    print(f"written at version {written}")
    columns = pb.SetColumns(set=[pb.Column(column="port", value=b"7"), pb.Column(column="seen", value=b"1")])
    store.write("python/devices", b"02:00:00:00:00:01", columns=columns)

    # A write that is based on another version is refused, and says which is there.
    stale = pb.Condition(version=written + 1_000_000)
    refused = store.write("python/addresses", b"192.0.2.1", condition=stale, put=pb.Put(value=b"x"))
    print(f"conflict: version {refused.conflict.found} is there")

    # One column of the device at the end of the reference, in one round trip.
    follow = pb.Follow(table="python/addresses", key=b"192.0.2.1", select=pb.Select(columns=["port"]))
    found = store.read(pb.Query(follow=follow)).found
    print(f"port {found.columns[0].value.decode()}")

    before = store.write("python/addresses", b"counter", increment=pb.Increment(by=1)).counted.before
    counter = store.read(pb.Query(get=pb.Get(table="python/addresses", key=b"counter"))).found.value
    print(f"counter was {before}, is {struct.unpack('>q', counter)[0]}")

    # A reply without changes only says how far the watch is.
    change = next(reply.changes[0] for reply in watch if reply.changes)
    print(f"watched {change.entries[0].table} {change.entries[0].key.decode()} at version {change.version}")
    watch.cancel()
    store.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
