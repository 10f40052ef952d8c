"""Virtual time: devices, links, availability, dropouts, and how long a server waits. Numbers only, no torch."""

from atoll.clock.clock import Clock
from atoll.clock.clock_table import ClockTable
from atoll.clock.device_classes import DeviceClass, device_classes
from atoll.clock.devices import Devices, Profile
from atoll.clock.quantities import Constant, LogNormal, Percentiles, Quantity, Uniform, read_quantity
from atoll.clock.replay import changed_table, replay, why_not_replayable
from atoll.clock.timeline import ABSENT, COUNTED, DROPPED, LATE, STATUS, Timeline
from atoll.clock.traces import Intervals, read_availability, read_device_trace
from atoll.clock.transfer import transfer_seconds
from atoll.clock.waiting import Patience, Wait

__all__ = [
    "ABSENT",
    "COUNTED",
    "DROPPED",
    "LATE",
    "STATUS",
    "Clock",
    "ClockTable",
    "Constant",
    "DeviceClass",
    "Devices",
    "Intervals",
    "LogNormal",
    "Patience",
    "Percentiles",
    "Profile",
    "Quantity",
    "Timeline",
    "Uniform",
    "Wait",
    "changed_table",
    "device_classes",
    "read_availability",
    "read_device_trace",
    "read_quantity",
    "replay",
    "transfer_seconds",
    "why_not_replayable",
]
