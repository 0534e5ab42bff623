"""From a log to a provider's prompt (window, repair, render), and from a provider's answer to messages. All is pure."""

__all__ = ()
