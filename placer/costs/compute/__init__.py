"""Seconds of ops on one device."""
