"""What a browser gets: the client `parlatory.js`, its types, and an npm package of the two. Files only."""

__all__ = ()
