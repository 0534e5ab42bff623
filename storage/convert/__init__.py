"""Messages to the prompts of providers, and answers of providers to messages."""

__all__: list[str] = []
