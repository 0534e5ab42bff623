"""The errors of the client, one tree below `ParlatoryError`.

ClientError
├── ConnectionRefused       the server does not talk to this client; it will not be asked again
├── Refused                 the server refused one request, for good
│   ├── SendRefused         a message; it was not appended
│   └── ConversationRefused the subscription: it never began, or the server ended it
├── SendTimeout             no answer in time; says whether the message may still be appended
├── CancelTimeout           no answer to a stop in time; says whether it may still take effect
├── MediaFailed             a picture or file could not be fetched
├── ClientClosed            the client or the chat was closed here
└── ClientMisuse            a call that cannot work as it stands

A refusal carries the server's `code` (PROTOCOL section 3): the code is the contract, the text is for people and may
change. A message over a limit of the server is not sent at all: that is storage's `TooLarge`.
"""

from __future__ import annotations

from ..storage import ParlatoryError

__all__ = [
    "CancelTimeout",
    "ClientClosed",
    "ClientError",
    "ClientMisuse",
    "ConnectionRefused",
    "ConversationRefused",
    "MediaFailed",
    "Refused",
    "SendRefused",
    "SendTimeout",
]


class ClientError(ParlatoryError):
    """Is the root of what the client raises."""

    code = "client"


class ConnectionRefused(ClientError):
    """Says that the server refused the connection for good; `close_code` is its close code or HTTP status, if any."""

    code = "connection_refused"

    def __init__(self, text: str, close_code: int | None = None) -> None:
        super().__init__(text)
        self.close_code = close_code


class Refused(ClientError):
    """Says that the server refused a request; repeating it as it is makes no sense."""

    def __init__(self, code: str, text: str, conversation: str) -> None:
        super().__init__(f"{self._what(conversation)}: {code} ({text})")
        vars(self)["code"] = code  # of the instance: the class only has a default
        self.text = text
        self.conversation = conversation

    def _what(self, conversation: str) -> str:
        return f"the server refused a request about {conversation!r}"


class SendRefused(Refused):
    """Says that a message was refused and is not in the log."""

    def __init__(self, code: str, text: str, conversation: str, client_id: str) -> None:
        super().__init__(code, text, conversation)
        self.client_id = client_id

    def _what(self, conversation: str) -> str:
        return f"the server refused a message to {conversation!r}"


class ConversationRefused(Refused):
    """Says that the conversation cannot be had, or no longer; the chat is over."""

    def _what(self, conversation: str) -> str:
        return f"the server refused the conversation {conversation!r}"


class SendTimeout(ClientError, TimeoutError):
    """Says that a send was not answered in time.

    If `sent` is false the message was forgotten and will not be appended. If it is true the message may be in the log
    or still get there; sending the same message again under the same `client_id` settles it.
    """

    code = "timeout"
    temporary = True

    def __init__(self, client_id: str, sent: bool) -> None:
        what = "it may still be appended; send it again under this id to know" if sent else "it was not sent"
        super().__init__(f"message {client_id!r} was not answered in time: {what}")
        self.client_id = client_id
        self.sent = sent


class CancelTimeout(ClientError, TimeoutError):
    """Says that a stop was not answered in time; it is not repeated. If `sent` is true it may still take effect."""

    code = "timeout"
    temporary = True

    def __init__(self, conversation: str, sent: bool) -> None:
        what = "it may still take effect" if sent else "it was not sent"
        super().__init__(f"the stop of a turn in {conversation!r} was not answered in time: {what}")
        self.conversation = conversation
        self.sent = sent


class MediaFailed(ClientError):
    """Says that media could not be fetched; `status` is the HTTP status, or None where there was no answer.

    `temporary` says whether asking again makes sense. Media that are not there are storage's `UnknownMedia`.
    """

    code = "media"

    def __init__(self, hash: str, text: str, status: int | None = None) -> None:
        super().__init__(f"the media sha256:{hash} were not fetched: {text}")
        vars(self)["temporary"] = status is None or status >= 500  # of the instance: the class only has a default
        self.hash = hash
        self.status = status


class ClientClosed(ClientError):
    """Says that the client or the chat was closed before, or during, this call."""

    code = "closed"


class ClientMisuse(ClientError, RuntimeError):
    """Says that the call cannot work as it stands; the text says what to do instead."""

    code = "misuse"
