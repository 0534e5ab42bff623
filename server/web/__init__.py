"""What browsers load: `parlatory.js` for any page, and the pages that the server has itself."""

__all__ = []
