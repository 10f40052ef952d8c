"""Convolutions and pooling of many clients at once, each with weights of its own."""
