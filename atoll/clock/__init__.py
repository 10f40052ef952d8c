"""Virtual time: devices, links, availability, dropouts, and how long a server waits. Numbers only, no torch."""

from atoll.clock.clock import Clock, Trips
from atoll.clock.clock_table import ClockTable
from atoll.clock.decomposition import RoundParts
from atoll.clock.device_classes import DeviceClass, device_classes
from atoll.clock.devices import DeviceProfile, Devices
from atoll.clock.dropouts import by_labels, by_size, lost_clients
from atoll.clock.flights import Barrier, Flights, Flow, FlowStep, Messages
from atoll.clock.quantities import (
    ConstantQuantity,
    Floats,
    Ints,
    LogNormalQuantity,
    PercentileTable,
    Quantity,
    UniformQuantity,
    read_quantity,
)
from atoll.clock.retime import retime, why_not_replayable
from atoll.clock.timeline import ABSENT, COUNTED, DROPPED, LATE, STATUS, Overhead, Timeline
from atoll.clock.traces import Intervals, read_availability, read_device_trace
from atoll.clock.transfer import transfer_seconds
from atoll.clock.waiting import Patience, Wait

__all__ = [
    "ABSENT",
    "COUNTED",
    "DROPPED",
    "LATE",
    "STATUS",
    "Barrier",
    "Clock",
    "ClockTable",
    "ConstantQuantity",
    "DeviceClass",
    "DeviceProfile",
    "Devices",
    "Flights",
    "Floats",
    "Flow",
    "FlowStep",
    "Intervals",
    "Ints",
    "LogNormalQuantity",
    "Messages",
    "Overhead",
    "Patience",
    "PercentileTable",
    "Quantity",
    "RoundParts",
    "Timeline",
    "Trips",
    "UniformQuantity",
    "Wait",
    "by_labels",
    "by_size",
    "device_classes",
    "lost_clients",
    "read_availability",
    "read_device_trace",
    "read_quantity",
    "retime",
    "transfer_seconds",
    "why_not_replayable",
]
