"""What every test of stages begins from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.offline.test_regime import recording


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory.mktemp("data") / "random.npz")
