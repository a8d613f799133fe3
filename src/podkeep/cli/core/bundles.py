"""Options of a verb that belong together, passed to it as one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def bundle(parameter: str, make: Callable[..., Any], *names: str) -> Callable[[Function], Function]:
    """Pass a verb the options and arguments ``names`` as one ``parameter``, which ``make`` makes of them.

    It stands below their decorators.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def bundled(*args: Any, **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name) for name in names if name in kwargs}
            return function(*args, **{parameter: make(**given)}, **kwargs)

        return bundled  # type: ignore[return-value]

    return decorate
