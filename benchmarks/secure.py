"""Processor seconds and bytes of secure aggregation, by clients, parameters and dropouts.

    python benchmarks/secure.py [--only secagg,light_secagg] [--clients 10,100] [--parameters 1000,1000000]
                                [--dropout 0,0.1,0.3] [--bits 32] [--jobs 8] [--json costs.json]

Each cell of the table is one task on one thread; `--jobs` of them run at once, in processes of their own, each bound
to a physical core of its own. The file says where, when and how many at once. With `--resume` cells that the file has
are not run again. `benchmarks/secure_table.py` writes the file's table into a page.

Client: of one that stays to the end, all steps, and of these the shares (Shamir or Lagrange, sealing) and the masked
vector; its bytes over the wire, headers included. Server: from the first message to the sum.

"all": every party runs, in process and over the wire. "one": one client runs in full, and the server, each against
stand-ins for the others that send real messages: fresh keys, sealed boxes of random shares, vectors that are one
tensor; encoding and decoding what one client gets and sends is timed once and multiplied. "one, +": in addition, masks
towards clients that dropped out are timed for a few of them and multiplied, where they would take minutes. Who drops
out does so before its vector arrives, which costs the server most.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

import cryptography
import torch

from atoll import rng
from atoll.core import Message
from atoll.protocols import AdditiveSharing, LightSecAgg, SecAgg, SecAggPlus, SecureAggregation, run_protocol
from atoll.protocols.graphs import Graph
from atoll.protocols.keys import Identity, KeyPair, byte_row, byte_rows
from atoll.protocols.mailbox import Mailbox
from atoll.protocols.masks import SEED_BYTES
from atoll.protocols.message_fields import id_row, say
from atoll.protocols.pairwise import PairwiseMasks
from atoll.protocols.pairwise_client import commitment, consistency_text, keys_text
from atoll.protocols.shamir import SHARE_BYTES, split
from atoll.tree import Tree
from atoll.wire import SERVER, decode, encode

PARAMETERS = (1_000, 10_000, 44_426, 100_000, 1_000_000, 1_630_000)  # 44,426: LeNet; 1.63 million: FedEval's CNN
ALL = 30_000_000  # clients x parameters up to which everybody runs, if there are few enough clients
FEW = 40
MASKED = 20_000_000_000  # numbers of masks up to which all are made
KEY = rng.key("benchmark")
SESSION = bytes(range(16))


@dataclass(frozen=True)
class Cost:
    """One row."""

    protocol: str
    clients: int
    parameters: int
    dropout: float
    measured: str
    client_seconds: float
    shares_seconds: float
    masked_seconds: float
    server_seconds: float
    up_bytes: int
    down_bytes: int


def protocols(bits: int) -> dict[str, SecureAggregation]:
    return {
        "additive-2": AdditiveSharing(bits),
        "additive-4": AdditiveSharing(bits, splits=4),
        "secagg": SecAgg(bits),
        "secagg-active": SecAgg(bits, active_server=True),
        "secagg_plus": SecAggPlus(bits),
        "light_secagg": LightSecAgg(bits),
    }


def everybody(name: str, protocol: SecureAggregation, clients: int, size: int, lost: int) -> Cost:
    """A whole round in one process."""
    own = {i: {"vector": torch.randint(0, 1 << protocol.bits, (size,))} for i in range(clients)}
    step = protocol.answers().index(protocol.vector_kind)
    result, log = run_protocol(
        protocol, own, KEY, lambda at, id: at == step and id < lost, over_wire=True, keep_messages=False
    )
    total = sum(own[i]["vector"] for i in range(lost, clients)) % (1 << protocol.bits)
    assert torch.equal(result["sum"], total)
    stayed = range(lost, clients)

    def mean(steps: list[dict[int, float]] | list[dict[int, int]]) -> float:
        return sum(step[i] for step in steps for i in stayed) / len(stayed)

    seconds = log.client_seconds
    return Cost(
        *(name, clients, size, lost / clients, "all", mean(seconds), mean(seconds[1:2]), mean(seconds[2:3])),
        sum(log.server_seconds),
        round(mean(log.up_bytes)),
        round(mean(log.down_bytes)),
    )


class StandIns:
    """All other clients of one: real keys and boxes, and shares that say nothing."""

    def __init__(self, protocol: SecureAggregation, clients: int, size: int, lost: int) -> None:
        self.protocol, self.clients, self.size, self.lost = protocol, clients, size, lost
        self.me = clients - 1
        draw = protocol.random_bytes(KEY)
        pairwise = isinstance(protocol, PairwiseMasks)
        self.graph = protocol.graph(clients) if isinstance(protocol, PairwiseMasks) else Graph(clients - 1, 2, 2)
        near = self.graph.neighbours(range(clients), draw)[self.me]
        self.peers = sorted([*near, self.me])
        self.gone = [id for id in near if id < lost]
        self.pairs = {id: [KeyPair.draw(draw) for _ in range(1 + pairwise)] for id in near}
        self.given = protocol.enrol(range(clients), KEY)
        self.draw = draw

    def costs(self) -> tuple[list[float], int, int, float]:
        """Seconds of each step of one client, its bytes up and down, and the server's seconds for these bytes."""
        own = {"vector": torch.randint(0, 1 << self.protocol.bits, (self.size,)), **self.given.get(self.me, {})}
        client = self.protocol.client(self.me, own, KEY)
        next(client)
        seconds, up, down, wire = [], 0, 0, 0.0
        message = say("start", SESSION, clients=torch.tensor(self.clients))
        while True:
            began = time.process_time()
            data = self._encoded(message, SERVER)
            wire += time.process_time() - began
            began = time.process_time()
            payload = decode(data)
            reply = client.send(Message(payload.kind, payload.tree))
            assert reply is not None
            answer = self._encoded(reply, self.me)
            seconds.append(time.process_time() - began)
            began = time.process_time()
            decode(answer)
            wire += time.process_time() - began
            up, down = up + len(answer), down + len(data)
            if reply.kind == self.protocol.answers()[-1]:
                return seconds, up, down, wire
            message = self.server(reply)

    def _encoded(self, message: Message, sender: int) -> bytes:
        return encode(self.protocol.layout(message), message.body, kind=message.kind, round=0, sender=sender)

    def server(self, reply: Message) -> Message:
        """What the server would say to this."""
        if reply.kind == "keys":
            self.mine = reply.body["public"].reshape(-1, 32)
            return self._peers(reply)
        if reply.kind in ("shares", "coded", "parts"):
            return self._boxes(reply)
        alive = [id for id in self.peers if id not in self.gone]
        signs = isinstance(self.protocol, PairwiseMasks) and self.protocol.checks_consistency()
        if reply.kind == "masked" and (signs or isinstance(self.protocol, LightSecAgg)):
            return say("survivors", SESSION, ids=id_row(alive))
        proofs = self._proofs(alive, reply) if signs else {}
        return say("unmask", SESSION, alive=id_row(alive), dropped=id_row(self.gone), **proofs)

    def _signature(self, id: int, text: bytes) -> bytes:
        return Identity(self.given[id]["identity"]["private"].numpy().tobytes(), {}).sign(text)

    def _proofs(self, alive: list[int], reply: Message) -> Tree:
        """That all who are left were told the same."""
        mask_keys, seal_keys = (
            {id: self.pairs[id][i].public if id != self.me else self.mine[i].numpy().tobytes() for id in self.peers}
            for i in (0, 1)
        )
        text = consistency_text(SESSION, self.clients, mask_keys, seal_keys, alive)
        signatures = [self._signature(id, text) for id in alive]
        return {"signers": id_row(alive), "signatures": byte_rows(signatures, 64)}

    def _peers(self, reply: Message) -> Message:
        listed = [*(torch.stack([byte_row(p.public) for p in self.pairs[id]]) for id in self.peers[:-1]), self.mine]
        public, more = torch.stack(listed), {}
        if "signature" in reply.body:
            texts = {
                id: keys_text(SESSION, self.clients, id, public[i].numpy().tobytes()) for i, id in enumerate(self.peers)
            }
            more["signatures"] = byte_rows([self._signature(id, text) for id, text in texts.items()], 64)
        keys = public if public.shape[1] > 1 else public[:, 0]
        return say("peers", SESSION, ids=id_row(self.peers), public=keys, **more)

    def _boxes(self, reply: Message) -> Message:
        """From everybody, or from those before it on the ring, boxes as wide as its own."""
        senders = self.peers[:-1]
        if isinstance(self.protocol, AdditiveSharing):
            senders = [id for id in senders if self.me in self.protocol.receivers(self.peers, id)]
        width, mine = reply.body["boxes"].shape[1] - 16, self.mine.numpy()
        text = bytes(width)
        boxes = []
        for id in senders:
            pair = self.pairs[id]
            bound = {id: pair[0].public, self.me: mine[0].tobytes()} if len(pair) > 1 else {}
            box = Mailbox(id, SESSION, pair[-1], {self.me: mine[-1].tobytes()}, bound)
            boxes.append(box.seal(self.me, text))
        return say("boxes", SESSION, ids=id_row([*senders, self.me]), boxes=byte_rows(boxes, width + 16))


def pairwise_server(protocol: PairwiseMasks, clients: int, size: int, lost: int) -> float:
    """Seconds of the server, whose clients all have one private mask, one vector and, if they are lost, one key."""
    draw, server = protocol.random_bytes(KEY), protocol.server(range(clients), KEY)
    graph, seconds = protocol.graph(clients), [0.0]
    keys = {id: KeyPair.draw(draw) for id in range(lost, clients)}
    keys |= dict.fromkeys(range(lost), KeyPair.draw(draw))
    seed = draw(SEED_BYTES)
    secrets = [int.from_bytes(x, "little") for x in (seed, keys[0].private)]
    rows = split(secrets, range(1, clients + 1), graph.threshold, draw)
    shares = byte_rows([x.to_bytes(SHARE_BYTES, "little") for row in rows for x in row], SHARE_BYTES).reshape(-1, 2, 33)
    vector = torch.randint(0, 1 << protocol.bits, (size,))

    def timed(inbox: Mapping[int, Message] | None) -> Mapping[int, Message] | None:
        began = time.process_time()
        try:
            return next(server) if inbox is None else server.send(inbox)
        except StopIteration:
            return None
        finally:
            seconds[0] += time.process_time() - began

    outbox = timed(None)
    assert outbox is not None
    session = outbox[0].body["session"].numpy().tobytes()
    public = {id: torch.stack([byte_row(keys[id].public)] * 2) for id in keys}
    signed = {"signature": torch.zeros(64, dtype=torch.uint8)} if protocol.checks_consistency() else {}
    outbox = timed({id: say("keys", session, public=public[id], **signed) for id in sorted(keys)})
    assert outbox is not None
    near = {id: [other for other in message.body["ids"].tolist() if other != id] for id, message in outbox.items()}
    boxes = {k: torch.zeros(k, 82, dtype=torch.uint8) for k in {len(x) for x in near.values()}}
    promise = byte_row(commitment(seed, session))
    outbox = timed(
        {id: say("shares", session, ids=id_row(x), boxes=boxes[len(x)], commitment=promise) for id, x in near.items()}
    )
    masked = say("masked", session, vector=vector)
    outbox = timed(dict.fromkeys(range(lost, clients), masked))
    if signed:
        outbox = timed(dict.fromkeys(range(lost, clients), say("signed", session, **signed)))
    assert outbox is not None
    answers = {}
    for id, message in outbox.items():
        of = [(0, len(message.body["alive"])), (1, len(message.body["dropped"]))]
        seeds, others = (shares[id, which].expand(count, 33) for which, count in of)
        answers[id] = say("revealed", session, seeds=seeds, keys=others)
    assert timed(answers) is None
    return seconds[0]


def other_server(protocol: AdditiveSharing | LightSecAgg, clients: int, size: int, lost: int) -> float:
    """Seconds of a server that adds vectors up, and recovers their masks if they are coded."""
    small = 64  # boxes are passed on without being read; theirs is a length that fits in memory
    draw, server, seconds = protocol.random_bytes(KEY), protocol.server(range(clients), KEY), [0.0]
    coding = protocol.coding(clients) if isinstance(protocol, LightSecAgg) else None
    top = protocol.modulus(clients)
    vector = torch.randint(0, top, (size,)).to(coding.dtype if coding else torch.int64)

    def timed(inbox: Mapping[int, Message] | None) -> Mapping[int, Message]:
        began = time.process_time()
        try:
            return next(server) if inbox is None else server.send(inbox)
        except StopIteration:
            return {}
        finally:
            seconds[0] += time.process_time() - began

    session = timed(None)[0].body["session"].numpy().tobytes()
    timed({id: say("keys", session, public=byte_row(draw(32))) for id in range(clients)})
    boxes, sent = torch.zeros(clients, small, dtype=torch.uint8), {}
    everyone = list(range(clients))
    for id in everyone:
        receivers = [x for x in everyone if x != id] if coding else sorted(protocol.receivers(everyone, id))  # type: ignore[union-attr]
        kind = "coded" if coding else "parts"
        sent[id] = say(kind, session, ids=id_row(receivers), boxes=boxes[: len(receivers)])
    timed(sent)
    outbox = timed({id: say(protocol.vector_kind, session, vector=vector) for id in range(lost, clients)})
    if coding:
        over = hashlib.sha256(session + b"".join(id.to_bytes(8, "little") for id in outbox)).digest()
        share = say("recovered", session, share=vector[: coding.width(size)], over=byte_row(over))
        assert not timed(dict.fromkeys(outbox, share))
    return seconds[0]


def one(name: str, protocol: SecureAggregation, clients: int, size: int, lost: int) -> Cost:
    """One client in full, then the server in full."""
    seconds, up, down, wire = StandIns(protocol, clients, size, lost).costs()
    measured = "one"
    if isinstance(protocol, PairwiseMasks):
        degree = min(protocol.graph(clients).degree, clients - 1)
        if lost * degree * size <= MASKED:
            server = pairwise_server(protocol, clients, size, lost)
        else:
            few = max(2, round(MASKED / 4 / degree / size))
            none, some = (pairwise_server(protocol, clients, size, x) for x in (0, few))
            server, measured = none + (some - none) / few * lost, "one, +"
    else:
        assert isinstance(protocol, AdditiveSharing | LightSecAgg)
        server = other_server(protocol, clients, size, lost)
    server += wire * (clients - lost)
    return Cost(
        *(name, clients, size, lost / clients, measured, sum(seconds), seconds[1], seconds[2], server, up, down)
    )


class Cell(NamedTuple):
    """One row that is to be measured."""

    protocol: str
    clients: int
    parameters: int
    lost: int

    def measured(self, bits: int) -> Cost:
        measure = everybody if self.clients <= FEW and self.clients * self.parameters <= ALL else one
        return measure(self.protocol, protocols(bits)[self.protocol], *self[1:])

    def weight(self) -> float:
        """About how long it takes, beside others."""
        coded = 20 if self.protocol == "light_secagg" else 1
        masks = self.lost * min(self.clients, 60) / 20
        return self.clients * (self.parameters + 10_000) * (coded + masks)


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for name, protocol in protocols(options.bits).items():
        if options.only and not {name, name.split("-")[0]} & set(options.only):
            continue
        for clients in options.clients:
            for size in options.parameters:
                for dropout in options.dropout:
                    lost = round(dropout * clients)
                    if lost <= clients - protocol.least(clients):  # else the round would be void
                        yield Cell(name, clients, size, lost)


def physical_cores() -> list[int]:
    """One of the threads of each core that this process may use."""
    usable, firsts = sorted(os.sched_getaffinity(0)), {}
    for core in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        firsts.setdefault(siblings.read_text() if siblings.exists() else str(core), core)
    return list(firsts.values())


def bind_to_core(cores: Queue[int]) -> None:
    """Of a process of the pool, when it begins."""
    os.sched_setaffinity(0, {cores.get()})
    torch.set_num_threads(1)


def in_processes(tasks: Sequence[Cell], bits: int, jobs: int) -> Iterator[tuple[Cell, Cost]]:
    """The longest first, as they end."""
    context, found = multiprocessing.get_context("spawn"), physical_cores()
    if jobs > len(found):
        raise SystemExit(f"--jobs: {jobs}, and {len(found)} physical cores are to be had. Use no more.")
    cores: Queue[int] = context.Queue()
    for core in found[:jobs]:
        cores.put(core)
    with ProcessPoolExecutor(jobs, context, bind_to_core, (cores,)) as pool:
        ordered = sorted(tasks, key=Cell.weight, reverse=True)
        futures = {pool.submit(cell.measured, bits): cell for cell in ordered}
        for future in as_completed(futures):
            yield futures[future], future.result()


def machine() -> str:
    """The processor by name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(physical_cores())} physical cores"


def made(options: argparse.Namespace) -> dict[str, Any]:
    """Where, when and how."""
    command = re.sub(r" --json[ =]\S+", "", " ".join(["python", *sys.argv]))
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return {
        "machine": machine(),
        "date": date,
        "command": command,
        "at_once": options.jobs,
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cryptography": cryptography.__version__,
    }


def line(cost: Cost) -> str:
    return (
        f"| {cost.protocol} | {cost.clients:,} | {cost.parameters:,} | {cost.dropout:.0%} | {cost.client_seconds:.4f} "
        f"| {cost.shares_seconds:.4f} | {cost.masked_seconds:.4f} | {cost.server_seconds:.3f} | {cost.up_bytes:,} "
        f"| {cost.down_bytes:,} | {cost.measured} |"
    )


def numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def measure(options: argparse.Namespace) -> None:
    """All cells that are asked for, in the order of the table, written as they come."""
    tasks = list(cells(options))
    old = json.loads(options.json.read_text())["rows"] if options.resume else []
    rows = {Cell(r["protocol"], r["clients"], r["parameters"], round(r["dropout"] * r["clients"])): r for r in old}
    facts, order = made(options), {cell: i for i, cell in enumerate([*rows, *(x for x in tasks if x not in rows)])}
    print("|", " | ".join(COLUMNS), "|")
    print("|---" * len(COLUMNS) + "|")
    for cell, cost in in_processes([x for x in tasks if x not in rows], options.bits, options.jobs):
        print(line(cost), flush=True)
        rows[cell] = asdict(cost)
        if options.json:
            ordered = [rows[x] for x in sorted(rows, key=order.__getitem__)]
            options.json.write_text(json.dumps({"made": facts, "rows": ordered}, indent=1) + "\n")


COLUMNS = (
    *("protocol", "clients", "parameters", "dropout", "client s", "shares s", "masked s", "server s", "up", "down"),
    "measured",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--clients", type=numbers, default=[10, 100, 1000])
    parser.add_argument("--parameters", type=numbers, default=list(PARAMETERS))
    parser.add_argument("--dropout", type=lambda text: [float(x) for x in text.split(",")], default=[0.0, 0.1, 0.3])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    if options.resume and not (options.json and options.json.exists()):
        parser.error("--json: name the file that is to be gone on with")
    measure(options)


if __name__ == "__main__":
    main()
