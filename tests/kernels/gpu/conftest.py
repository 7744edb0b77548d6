"""Tests marked `gpu` need a GPU and compiled kernels: TRITON_INTERPRET=0 pytest tests/kernels/gpu -m gpu"""

import os

import pytest
import torch

NEEDS = pytest.mark.skip(reason="needs a GPU, and TRITON_INTERPRET=0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ["TRITON_INTERPRET"] == "1" or not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(NEEDS)
