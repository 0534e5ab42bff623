"""From a log to a provider's prompt: window, repair, render. All of it is pure; `MessageLog.prompt` reads the rows."""

__all__ = ()
