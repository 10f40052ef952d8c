"""Partitions (IID and non-IID): how the rows of a data set become clients."""

from collections.abc import Callable

from atoll.data.partition.assign import Partitioner
from atoll.data.partition.classes import Classes
from atoll.data.partition.client_names import make_clients
from atoll.data.partition.compose import Compose
from atoll.data.partition.designed import Designed
from atoll.data.partition.dirichlet import Dirichlet, QuantityDirichlet
from atoll.data.partition.fcube import FCube
from atoll.data.partition.group_split import Groups
from atoll.data.partition.iid import Iid
from atoll.data.partition.mixed import Mixed
from atoll.data.partition.natural import Natural
from atoll.data.partition.noise import FeatureNoise
from atoll.data.partition.noisy import noisy
from atoll.data.partition.pachinko import Pachinko
from atoll.data.partition.partition import Partition
from atoll.data.partition.shards import Shards
from atoll.data.partition.sizes import FixedPoints, LogNormal, PoissonLengths, PowerLaw
from atoll.data.partition.user_dirichlet import UserDirichlet
from atoll.data.partition.vertical import Vertical, VerticalPartition

PARTITIONS: dict[str, Callable[..., Partitioner]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "designed": Designed,
    "quantity_dirichlet": QuantityDirichlet,
    "classes": Classes,
    "shards": Shards,
    "natural": Natural,
    "power_law": PowerLaw,
    "lognormal": LogNormal,
    "poisson": PoissonLengths,
    "fixed": FixedPoints,
    "user_dirichlet": UserDirichlet,
    "pachinko": Pachinko,
    "niid_mixed": Mixed,
    "groups": Groups,
    "noise": FeatureNoise,
    "fcube": FCube,
    "compose": Compose,
}

__all__ = [
    "PARTITIONS",
    "Classes",
    "Compose",
    "Designed",
    "Dirichlet",
    "FCube",
    "FeatureNoise",
    "FixedPoints",
    "Groups",
    "Iid",
    "LogNormal",
    "Mixed",
    "Natural",
    "Pachinko",
    "Partition",
    "Partitioner",
    "PoissonLengths",
    "PowerLaw",
    "QuantityDirichlet",
    "Shards",
    "UserDirichlet",
    "Vertical",
    "VerticalPartition",
    "make_clients",
    "noisy",
]
