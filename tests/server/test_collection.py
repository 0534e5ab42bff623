from __future__ import annotations

import gc

import pytest

from parlatory.server.collection import YOUNG_MAX, collected_seldom


def test_the_collector_is_as_it_was_afterwards() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(RuntimeError, match="the end"), collected_seldom():
        assert gc.get_threshold() == (YOUNG_MAX, *before[1:])
        gc.freeze()
        raise RuntimeError("the end")
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == frozen
