"""Scalar types of the Kubernetes API whose form says more than their Python type.

The decoder (``decode.py``) checks the form; everywhere else they are plain ``str`` and ``int``.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated


class Form(Enum):
    """What a decoded scalar must look like."""

    INT32 = "a 32-bit integer"
    INT64 = "a 64-bit integer"
    QUANTITY = "a quantity"
    INT_OR_STRING = "an integer or a string"
    TIME = "a time"


Int32 = Annotated[int, Form.INT32]
Int64 = Annotated[int, Form.INT64]
Quantity = Annotated[str, Form.QUANTITY]
"""A number with a unit, as ``quantity.parse`` reads it; written as text or as a plain number."""
IntOrString = Annotated[int | str, Form.INT_OR_STRING]
"""A port's number, or its name."""
Time = Annotated[str, Form.TIME]
"""RFC 3339, as text."""
