"""Flower's SecAgg+ on vectors that clients hold: in its simulation on Ray, and the same code in one process.

    python benchmarks/peers/flower/secure.py CLIENTS NUMBERS --shares 7 --threshold 4 --rounds 2 [--direct]

Client i holds the numbers sin(i + j) and has weight 1; the mean must come out. Prints one line of JSON: seconds of
every round, and with --direct the processor's and the bytes of messages as Flower's protobuf encodes them.
"""

import argparse
import json
import os
import time
from types import SimpleNamespace

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.compat.common import recorddict_compat
from flwr.proto.recorddict_pb2 import RecordDict as Proto
from flwr.server import LegacyContext, ServerConfig
from flwr.server.client_manager import SimpleClientManager
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.supercore.task_identity import TaskIdentity

CLIPPING = 1.0  # Flower's own range is 8; what is held lies within 1


def held(client, numbers):
    return np.sin(client + np.arange(numbers, dtype=np.float32))


class Client(NumPyClient):
    def __init__(self, client, numbers):
        self.client, self.numbers = client, numbers

    def fit(self, parameters, config):
        return [held(self.client, self.numbers)], 1, {}


def client_app(numbers):
    def client_fn(context):
        return Client(int(context.node_config["partition-id"]), numbers).to_client()

    return ClientApp(client_fn=client_fn, mods=[secaggplus_mod])


class Everyone(FedAvg):
    """FedAvg without evaluation, which remembers the mean."""

    def __init__(self, clients, numbers):
        start = ndarrays_to_parameters([np.zeros(numbers, np.float32)])
        everyone = {"min_fit_clients": clients, "min_available_clients": clients}
        super().__init__(fraction_fit=1.0, fraction_evaluate=0.0, initial_parameters=start, **everyone)

    def aggregate_fit(self, server_round, results, failures):
        found = super().aggregate_fit(server_round, results, failures)
        self.mean = parameters_to_ndarrays(found[0])[0]
        return found


def workflow(given):
    return SecAggPlusWorkflow(
        num_shares=given.shares, reconstruction_threshold=given.threshold, clipping_range=CLIPPING, max_weight=1.0
    )


def simulated(given, strategy):
    """Seconds of every round in Flower's simulation, one core per client."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server, seconds, secure = ServerApp(), [], workflow(given)

    def timed(grid, context):
        began = time.perf_counter()
        secure(grid, context)
        seconds.append(time.perf_counter() - began)

    @server.main()
    def serve(grid, context):
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=given.rounds), strategy=strategy)
        DefaultWorkflow(fit_workflow=timed)(grid, legacy)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client_app(given.numbers), given.clients, backend_config=resources)
    return {"seconds": seconds}


class Direct:
    """A grid that calls the client's code where it is; every message becomes bytes and is read from them again."""

    def __init__(self, given):
        self.app = client_app(given.numbers)
        self.contexts = {
            i + 1: Context(1, i + 1, {"partition-id": i, "num-partitions": given.clients}, RecordDict(), {})
            for i in range(given.clients)
        }
        self.up = self.down = self.client_seconds = 0.0

    def send_and_receive(self, messages, *, timeout=None):
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        data = encoded(message.content)
        began = time.process_time()
        context = self.contexts[message.metadata.dst_node_id]
        reply = self.app(Message(decoded(data), metadata=message.metadata), context)
        answer = encoded(reply.content)
        self.client_seconds += time.process_time() - began
        self.up, self.down = self.up + len(answer), self.down + len(data)
        return Message(decoded(answer), metadata=reply.metadata)


def encoded(content):
    return recorddict_to_proto(content).SerializeToString()


def decoded(data):
    return recorddict_from_proto(Proto.FromString(data))


def direct(given, strategy):
    """The same code without Ray: processor seconds, and bytes."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    manager = SimpleClientManager()
    for i in range(given.clients):
        manager.clients[str(i + 1)] = SimpleNamespace(node_id=i + 1, cid=str(i + 1))
    found = {"seconds": [], "cpu": [], "client_cpu": [], "up": [], "down": []}
    config = ServerConfig(num_rounds=given.rounds)
    for number in range(given.rounds):
        grid = Direct(given)
        state = Context(1, 0, {}, RecordDict(), {})
        context = LegacyContext(context=state, config=config, strategy=strategy, client_manager=manager)
        context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: number + 1})
        start = recorddict_compat.parameters_to_arrayrecord(strategy.initial_parameters or start_of(given), True)
        context.state.array_records[MAIN_PARAMS_RECORD] = start
        began, before = time.process_time(), time.perf_counter()
        workflow(given)(grid, context)
        found["cpu"].append(time.process_time() - began)
        found["seconds"].append(time.perf_counter() - before)
        found["client_cpu"].append(grid.client_seconds / given.clients)
        found["up"].append(grid.up / given.clients)
        found["down"].append(grid.down / given.clients)
    return found


def start_of(given):
    return ndarrays_to_parameters([np.zeros(given.numbers, np.float32)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", type=int)
    parser.add_argument("numbers", type=int)
    parser.add_argument("--shares", type=int, required=True)
    parser.add_argument("--threshold", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--direct", action="store_true")
    given = parser.parse_args()
    strategy = Everyone(given.clients, given.numbers)
    found = (direct if given.direct else simulated)(given, strategy)
    right = np.mean([held(i, given.numbers) for i in range(given.clients)], axis=0)
    print(json.dumps({**found, "error": float(np.abs(strategy.mean - right).max())}))


if __name__ == "__main__":
    main()
