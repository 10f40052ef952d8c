"""Tests by room, as `atoll/` has them; what crosses rooms is in `scenarios/`, what tests share in `support/`."""
