"""Audits: what an attacker finds out, as numbers with confidence, beside what an accountant allows."""
