"""Bytes at URLs: one Protocol, a backend a scheme."""
