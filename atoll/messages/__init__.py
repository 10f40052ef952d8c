"""Workers that exchange named messages: in virtual time, between processes, between hosts. See docs/messages.md.

>>> class Ping(Worker):
...     def begin(self, post):
...         post.send("pong", "ping", {"left": 2})
...     def handlers(self):
...         return {"pong": self.on_pong}
...     def on_pong(self, post, mail):
...         left = int(mail.body["left"])
...         post.send("pong", "ping", {"left": left - 1}) if left else post.end()
>>> class Pong(Worker):
...     def handlers(self):
...         return {"ping": self.on_ping}
...     def on_ping(self, post, mail):
...         post.send("ping", "pong", mail.body)
...         if not mail.body["left"]:
...             post.end({"left": mail.body["left"]})
>>> done = run({"ping": Ping(), "pong": Pong()}, WorkerTopology.complete(["ping", "pong"]))
>>> done.results["pong"], len(done.log)
({'left': tensor(0)}, 6)
"""

from atoll.messages.actor import Actor, Refused
from atoll.messages.addresses import AddressList
from atoll.messages.connection_limits import ConnectionLimits
from atoll.messages.ended import Delivery, Ended
from atoll.messages.faults import Faults
from atoll.messages.in_virtual_time import run
from atoll.messages.local_training import LocalTraining, answer, read_partial
from atoll.messages.mutual_tls import MutualTls
from atoll.messages.over_tcp import run_worker
from atoll.messages.post import ClosedPostError, Deed, Post
from atoll.messages.processes import run_processes
from atoll.messages.virtual_network import VirtualNetwork
from atoll.messages.worker import Handler, Mail, Worker
from atoll.messages.worker_topology import WorkerTopology

__all__ = [
    "Actor",
    "AddressList",
    "ClosedPostError",
    "ConnectionLimits",
    "Deed",
    "Delivery",
    "Ended",
    "Faults",
    "Handler",
    "LocalTraining",
    "Mail",
    "MutualTls",
    "Post",
    "Refused",
    "VirtualNetwork",
    "Worker",
    "WorkerTopology",
    "answer",
    "read_partial",
    "run",
    "run_processes",
    "run_worker",
]
