"""Histories of other libraries, kept in a message log."""

__all__: list[str] = []
