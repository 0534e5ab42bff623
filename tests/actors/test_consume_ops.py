from __future__ import annotations

from types import SimpleNamespace

from parlatory.actors.consume_ops import field, plain, text_field


class Dumped:
    """Dumps itself as the objects of the SDKs do, which are pydantic models."""

    def model_dump(self, **options: object) -> dict[str, object]:
        return options


def test_fields_of_objects_and_dicts() -> None:
    for obj in ({"a": 1, "b": "x"}, SimpleNamespace(a=1, b="x")):
        assert (field(obj, "a"), field(obj, "c")) == (1, None)
        assert (text_field(obj, "a"), text_field(obj, "b"), text_field(obj, "c")) == ("", "x", "")
    assert field(None, "a") is None


def test_objects_in_json_terms() -> None:
    assert plain({"a": 1}) == plain(SimpleNamespace(a=1)) == {"a": 1}
    assert plain(Dumped()) == {"mode": "json", "by_alias": True, "exclude_unset": True, "warnings": False}
