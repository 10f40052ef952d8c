"""Suites of experiments: expanded, run, collected, compared, and read as advice."""
