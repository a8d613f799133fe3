"""The admission plugins in kube-apiserver's order, and which of them are on."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from podkeep.apiserver.admission.attributes import Admission, Attributes, Waits
from podkeep.apiserver.kinds.resources import Target
from podkeep.base.errors import InvalidArgument
from podkeep.base.text.similar import similar

ORDER = (
    "NamespaceLifecycle",
    "LimitRanger",
    "ServiceAccount",
    "NodeRestriction",
    "TaintNodesByCondition",
    "AlwaysPullImages",
    "ImagePolicy",
    "PodSecurity",
    "Priority",
    "DefaultTolerationSeconds",
    "DefaultStorageClass",
    "StorageObjectInUseProtection",
    "PersistentVolumeClaimResize",
    "RuntimeClass",
    "ClassResources",
    "ImageVolumes",
    "ClassQuota",
    "ResourceQuota",
)
"""The plugins that there may be (kube-apiserver: ``AllOrderedPlugins``). Quotas are last: what they count is final."""
OFF = frozenset({"AlwaysPullImages"})
"""Those that count only if they are asked for."""
ALWAYS = frozenset({"ClassResources", "ImageVolumes"})
"""Those that are rules of validation, which nobody can switch off."""


class Chain:
    """Plugins, one after the other: all of them change an object, then, when it is valid, all of them check it."""

    def __init__(self, plugins: tuple[Admission, ...]) -> None:
        self._plugins = plugins

    async def ready(self, target: Target) -> None:
        """Wait for each plugin that has to do something first."""
        for plugin in self._plugins:
            if isinstance(plugin, Waits):
                await plugin.ready(target)

    def mutate(self, attributes: Attributes) -> None:
        """Let each plugin change the object.

        :raises StatusError: of the first plugin that refuses it.
        """
        for plugin in self._plugins:
            plugin.mutate(attributes)

    def validate(self, attributes: Attributes) -> None:
        """Ask each plugin.

        :raises StatusError: of the first plugin that refuses the write.
        """
        for plugin in self._plugins:
            plugin.validate(attributes)


def chain(plugins: Mapping[str, Admission], enable: Collection[str] = (), disable: Collection[str] = ()) -> Chain:
    """Return the plugins that are on, in order.

    :param plugins: all that there are, by name.
    :raises InvalidArgument: as ``chosen`` does.
    """
    unordered = sorted(plugins.keys() - set(ORDER))
    if unordered:
        raise ValueError(f"plugins without a place in the order: {', '.join(unordered)}")
    return Chain(tuple(plugins[name] for name in chosen(enable, disable) if name in plugins))


def chosen(enable: Collection[str], disable: Collection[str]) -> list[str]:
    """Return the names of the plugins that are on, in order.

    :param enable: names of those that are on though they are off otherwise
        (kube-apiserver: ``--enable-admission-plugins``).
    :param disable: names of those that are off.
    :raises InvalidArgument: if there is no such plugin, it is in both lists, or cannot be disabled.
    """
    for key, names in (("enable", enable), ("disable", disable)):
        for name in names:
            if name not in ORDER:
                near = similar(name, ORDER)
                raise InvalidArgument(
                    f'api.{key}_admission_plugins: unknown admission plugin: "{name}"',
                    hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(ORDER))}",
                )
    if both := sorted(set(enable) & set(disable)):
        raise InvalidArgument(
            f"api.disable_admission_plugins: admission plugins are both enabled and disabled: {', '.join(both)}"
        )
    if forced := sorted(ALWAYS & set(disable)):
        raise InvalidArgument(
            f"api.disable_admission_plugins: admission plugins cannot be disabled: {', '.join(forced)}"
        )
    on = (set(ORDER) - OFF | set(enable)) - set(disable)
    return [name for name in ORDER if name in on]
