"""Credentials for images from a kubelet's exec plugins, asked on threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from podkeep.agent.images.puller import PodPull
from podkeep.base import credential_providers
from podkeep.base.config import AgentConfig
from podkeep.base.credential_providers import Providers, Settings
from podkeep.base.docker_config import Credentials, Keyring

log = logging.getLogger(__name__)

_SETTINGS = Settings(
    config="agent.image_credential_provider_config", directory="agent.image_credential_provider_bin_dir"
)


class CredentialPlugins:
    """The plugins that the agent's configuration names. One that fails is logged, and the image tried without it."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers

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
        answer = await asyncio.to_thread(self._providers.ask, image)
        for problem in answer.problems:
            log.warning("credentials for image %s: %s", image, problem)
        return Keyring(answer.entries).lookup(image)
