"""Stands for PyTorch: the few names that the Python package touches, with allocations made by hand."""
import ctypes
import os

ctypes.CDLL("libstdc++.so.6", mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(os.environ["FAKE_C10"], mode=ctypes.RTLD_GLOBAL)  # the exceptions

from . import _C, cuda  # noqa: E402,F401

__version__ = "2.fake"
