"""RuntimeClasses: which handler of the runtime a pod's class names (kubelet, runtimeclass/runtimeclass_manager.go)."""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.api.pod import Pod
from podkeep.base.errors import FailedPrecondition


class RuntimeClasses:
    """The classes that the API has; without an API a class's name is that of the handler."""

    def __init__(self) -> None:
        self._handlers: Mapping[str, str] | None = None

    def know(self, handlers: Mapping[str, str]) -> None:
        """Take the handlers of all classes, by the names of these."""
        self._handlers = handlers

    def handler(self, pod: Pod) -> str:
        """Return the handler that runs a pod; empty: the default one.

        :raises FailedPrecondition: if its class is not known, in a kubelet's words.
        """
        name = pod.spec.runtime_class_name or ""
        if not name or self._handlers is None:
            return name
        if name not in self._handlers:
            raise FailedPrecondition(
                f'failed to lookup RuntimeClass {name}: runtimeclass.node.k8s.io "{name}" not found',
                hint="create the RuntimeClass; the pod is tried again",
            )
        return self._handlers[name]

    def handler_of_running(self, pod: Pod) -> str:
        """Return the same for a pod that may run already; the class's name if it is gone meanwhile."""
        name = pod.spec.runtime_class_name or ""
        return name if self._handlers is None else self._handlers.get(name, name)
