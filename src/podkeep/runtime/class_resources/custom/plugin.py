"""Types of class resources that the configuration defines: files of the cgroup, a hook program, or both.

Owns: what ``[class_resources.types]`` means. A type appears on the node by configuration alone (KEP-3008, Goals). Does
not own: how files are written and put back (``cgroup_values.py``), how a hook is run (``hook.py``), which types there
are beside these (``loading.py``, which calls :func:`load`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from podkeep.base.config import ClassResourcesConfig, CustomClass, CustomType
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.class_resources.custom import cgroup_values
from podkeep.runtime.class_resources.custom.cgroup_values import CgroupValues
from podkeep.runtime.class_resources.custom.hook import Action, Hook
from podkeep.runtime.class_resources.model import (
    ClassResource,
    Level,
    Offer,
    Target,
    check_class,
    check_type,
    named,
    problem,
)
from podkeep.runtime.oci.compose import Config


def load(config: ClassResourcesConfig, cgroups: Cgroups) -> list[ClassResource]:
    """Return the types that the configuration defines, sorted by name.

    :raises InvalidArgument: naming the key, if one cannot be meant as it is written.
    """
    check(config)
    return [CustomResource(name, definition, cgroups) for name, definition in sorted(config.types.items())]


def check(config: ClassResourcesConfig) -> None:
    """Check the definitions without looking at the machine.

    :raises InvalidArgument: as :func:`load`.
    """
    _check_apart(config.types)
    for name, definition in config.types.items():
        _check(name, definition)


def _check(name: str, definition: CustomType) -> None:
    key = f'class_resources.types."{name}"'
    check_type(name, key=key)
    if not definition.levels:
        raise InvalidArgument(f"{key}.levels: it is empty", hint='write "container", "pod" or both')
    if definition.hook and not os.path.isabs(definition.hook):
        raise InvalidArgument(f"{key}.hook: {definition.hook!r} is not an absolute path", hint="begin it with /")
    if not 0 < definition.hook_timeout <= 600:
        raise InvalidArgument(
            f"{key}.hook_timeout: {definition.hook_timeout:g} is not between 0 and 600", hint="use 10, in seconds"
        )
    for class_name, meaning in definition.classes.items():
        below = f'{key}.classes."{class_name}"'
        check_class(class_name, key=below)
        _check_meaning(below, meaning, has_hook=bool(definition.hook))


def _check_meaning(key: str, meaning: CustomClass, *, has_hook: bool) -> None:
    for file, text in meaning.cgroup.items():
        cgroup_values.check_file(file, key=f"{key}.cgroup")
        if not text.strip():
            raise InvalidArgument(f"{key}.cgroup: nothing is to be written to {file}", hint="give it a value")
    if meaning.parameters and not has_hook:
        raise InvalidArgument(f"{key}.parameters: the type has no hook that could be told", hint="set its hook")
    if not meaning.cgroup and not has_hook:
        hint = "give it files of the cgroup, or the type a hook"
        raise InvalidArgument(f"{key}: the class means nothing: nothing would enforce it", hint=hint)


def _check_apart(types: Mapping[str, CustomType]) -> None:
    """Check that no file belongs to two types of one level: what it reads could be the meaning of one of them only."""
    owners: dict[tuple[str, str], str] = {}
    for name, definition in sorted(types.items()):
        files = {file for meaning in definition.classes.values() for file in meaning.cgroup}
        for level in definition.levels:
            for file in sorted(files):
                other = owners.setdefault((level, file), name)
                if other != name:
                    raise InvalidArgument(
                        f'class_resources.types."{name}": its classes set {file}, and so do those of "{other}"',
                        hint="let one type alone set a file",
                    )


class CustomResource(ClassResource):
    """A type that the configuration defines."""

    def __init__(self, name: str, definition: CustomType, cgroups: Cgroups) -> None:
        self.name = name
        self._definition = definition
        self._values = partial(CgroupValues, cgroups, name)
        path, timeout = definition.hook, definition.hook_timeout
        self._hook = Hook(path, timeout=timeout, cgroups=cgroups) if path else None
        offer = Offer(classes=tuple(sorted(definition.classes)), immutable=definition.immutable)
        self._offers = {Level(level): offer for level in definition.levels} if definition.classes else {}

    def offers(self) -> Mapping[Level, Offer]:
        return {} if self._cannot_run() else self._offers

    def why_not(self, level: Level) -> str:
        if level.value not in self._definition.levels:
            return f"it is for {' and '.join(f'{name}s' for name in self._definition.levels)} only"
        return self._cannot_run() if self._offers else "the configuration gives it no class"

    def check(self, level: Level, class_name: str) -> None:
        if why := self._cannot_run():
            raise FailedPrecondition(problem(self.name, why), hint="fix that, or leave the type out")

    def edit(self, class_name: str, config: Config) -> Config:
        return config

    def put(self, target: Target, class_name: str, previous: str | None) -> None:
        self._put(target, class_name, self._meaning(class_name).cgroup, previous)

    def way_back(self, target: Target, class_name: str, previous: str | None) -> Callable[[], None]:
        if previous is None:
            return super().way_back(target, class_name, previous)
        wrote = self._values(target.cgroup).wrote()
        return partial(self._put, target, previous, wrote, class_name)

    def _put(self, target: Target, class_name: str, files: Mapping[str, str], previous: str | None) -> None:
        """Write the files of a class, then call the hook."""
        self._values(target.cgroup).apply(files)
        self._call(Action.APPLY, target, class_name, previous=previous)

    def verify(self, target: Target, class_name: str) -> None:
        """Compare what the files read with what they read when they were written, and ask the hook."""
        with named(self.name):
            meaning = self._meaning(class_name)
            if wrong := self._values(target.cgroup).wrong(meaning.cgroup):
                raise FailedPrecondition(f"{target.name} is not in class {class_name}: {wrong}")
            self._call(Action.VERIFY, target, class_name)

    def release(self, target: Target, class_name: str) -> None:
        """Tell the hook, and put back the files whatever it says, as far as the cgroup is still there."""
        with named(self.name):
            try:
                self._call(Action.RELEASE, target, class_name)
            finally:
                self._values(target.cgroup).release()

    def describe(self) -> dict[str, Any]:
        hook = {} if self._hook is None else {"hook": self._hook.path}
        return {
            "kind": "custom",
            **hook,
            "classes": msgspec.to_builtins(dict(sorted(self._definition.classes.items()))),
        }

    def _cannot_run(self) -> str:
        return self._hook.cannot_run() if self._hook is not None else ""

    def _meaning(self, class_name: str) -> CustomClass:
        if class_name not in self._definition.classes:
            raise FailedPrecondition(f"class {class_name} is no longer in the configuration")
        return self._definition.classes[class_name]

    def _call(self, action: Action, target: Target, class_name: str, *, previous: str | None = None) -> None:
        if self._hook is not None:
            # Of a class that the configuration no longer has nothing is known.
            parameters = dict(self._definition.classes.get(class_name, CustomClass()).parameters)
            told = {"type": self.name, "class": class_name, "previousClass": previous, "parameters": parameters}
            self._hook.call(action, target, told)
