"""Credentials for images from a kubelet's exec plugins, asked on threads.

A plugin may hang, for a minute, and a pod's author says for which images it is asked. All plugins together take threads
of nobody else (``base/concurrency/threads.py``), and the pods of one namespace some of these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from weakref import WeakValueDictionary

from podkeep.agent.images.puller import PodPull
from podkeep.base.concurrency.threads import working_for
from podkeep.base.config import AgentConfig
from podkeep.base.registries import credential_providers
from podkeep.base.registries.credential_providers import Providers, Settings, Told
from podkeep.base.registries.docker_config import Credentials, Keyring

log = logging.getLogger(__name__)

_OF_A_NAMESPACE = 2
"""Images of one namespace that plugins are asked about at a time: fewer than there are threads for all."""
_SETTINGS = Settings(
    config="agent.image_credential_provider_config", directory="agent.image_credential_provider_bin_dir"
)


class CredentialPlugins:
    """The plugins that the agent's configuration names. One that fails is logged, and the image tried without it."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @classmethod
    def of(cls, config: AgentConfig) -> CredentialPlugins | None:
        """Return the plugins that are configured; None if there are none.

        :raises InvalidArgument: if their configuration cannot be read.
        """
        path = config.image_credential_provider_config
        if not path:
            return None
        found = credential_providers.load(path, config.image_credential_provider_bin_dir, _SETTINGS)
        return cls(Providers(found))

    async def credentials(self, image: str, pod: PodPull) -> Sequence[Credentials]:
        """See :class:`podkeep.agent.images.puller.Plugins`."""
        answer = self._providers.known(image) or await self._asked(image, pod.sandbox.metadata.namespace)
        for problem in answer.problems:
            log.warning("credentials for image %s: %s", image, problem)
        return Keyring(answer.entries).lookup(image)

    async def _asked(self, image: str, namespace: str) -> Told:
        # Weakly held: a semaphore lives as long as somebody waits for it, so that the table does not grow with
        # namespaces.
        places = self._places.setdefault(namespace, asyncio.Semaphore(_OF_A_NAMESPACE))
        async with places:
            # Another pod may have had the same image to wait for.
            if (known := self._providers.known(image)) is not None:
                return known
            # Threads are shared out by whom they work for: plugins that hang take those of no pod, or pods could not be
            # stopped.
            with working_for("credential plugins"):
                return await asyncio.to_thread(self._providers.ask, image)
