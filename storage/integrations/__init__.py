"""The histories of other libraries, kept in a message log.

Every item of a library is a row, or a few, that everybody reads: clients, other providers' prompts, other libraries. It
comes back to its own library as it was, and what others appended comes to it as a prompt would have it.
"""

__all__ = ()
