"""How the rows of a data set become clients."""

from atoll.data.partition.assign import Partitioner
from atoll.data.partition.classes import Classes
from atoll.data.partition.dirichlet import Dirichlet, QuantityDirichlet
from atoll.data.partition.iid import Iid
from atoll.data.partition.natural import Natural
from atoll.data.partition.partition import Partition
from atoll.data.partition.shards import Shards

PARTITIONS = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "quantity_dirichlet": QuantityDirichlet,
    "classes": Classes,
    "shards": Shards,
    "natural": Natural,
}

__all__ = [
    "PARTITIONS",
    "Classes",
    "Dirichlet",
    "Iid",
    "Natural",
    "Partition",
    "Partitioner",
    "QuantityDirichlet",
    "Shards",
]
