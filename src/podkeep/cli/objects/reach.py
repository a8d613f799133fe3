"""Reaching the API from a verb: which one is meant, the event loop, and what kinds of objects it has.

Does not own: requests (``client``), finding a kubeconfig (``client.kubeconfig``).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core import connection, interruptible, node_report
from podkeep.cli.core.bundles import bundle
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.core.output import echo_line
from podkeep.cli.objects import kinds

if TYPE_CHECKING:
    from podkeep.client.client import Client
    from podkeep.client.settings import Settings

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Reach(FrozenStruct, kw_only=True):
    """Which API a person means, and which namespace (empty: that of the context)."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    everywhere: bool = False
    """All namespaces."""
    is_own: bool = False
    """This node's own API, whatever KUBECONFIG names."""


class Api:
    """A connected API and the person's choice of a namespace in it."""

    def __init__(self, client: Client, reach: Reach) -> None:
        self.client = client
        self.namespace = reach.namespace or client.settings.namespace or "default"
        self.asked = reach.namespace
        """The namespace that the command line names; empty: none."""
        self.everywhere = reach.everywhere
        self._kinds: list[kinds.Kind] | None = None

    @property
    def searched(self) -> str:
        """The namespace in which lists look; empty: all."""
        return "" if self.everywhere else self.namespace

    def place_of(self, meant: kinds.Meant) -> str:
        """Return the namespace of named objects, or that in which a list looks; empty: all, or the kind has none."""
        return (self.namespace if meant.names else self.searched) if meant.resource.namespaced else ""

    async def kinds(self) -> list[kinds.Kind]:
        """Return what kinds of objects it has; asked once."""
        if self._kinds is None:
            answers = await asyncio.gather(
                *(self.client.request("GET", path, accept=_AGGREGATED) for path in ("/api", "/apis"))
            )
            self._kinds = [kind for answer in answers for kind in kinds.discovered(answer.value)]
        return self._kinds


class _Warnings:
    """Shows what the API warns of, each text once: a file may have many objects of a kind."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            echo_line(f"warning: {text}", err=True)


def run(
    invocation: Invocation, reach: Reach, operation: Callable[[Api], Awaitable[Result]], *, quiet: bool = False
) -> Result:
    """Connect to the API that is meant, run ``operation``, and return its result.

    :param quiet: show nothing of what the API warns of.
    :raises FailedPrecondition: if there is none.
    :raises ApiError: if it refuses.
    :raises PodkeepError: what the operation raises.
    """

    async def connected() -> Result:
        from podkeep.client.client import Client

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
        settings = _settings(invocation, reach)
        if settings.server == f"unix://{invocation.config.api.unix_socket}":
            connection.require_api(invocation)
        client = Client(settings, on_warning=None if quiet else _Warnings())
        try:
            return await operation(Api(client, reach))
        finally:
            await client.close()

    return interruptible.run(connected())


def _settings(invocation: Invocation, reach: Reach) -> Settings:
    """Return how the API that is meant is reached.

    :raises FailedPrecondition: if there is none.
    """
    from podkeep.client import kubeconfig
    from podkeep.client.settings import Settings

    socket = invocation.config.api.unix_socket
    if reach.is_own:
        return Settings(server=f"unix://{socket}")
    own = os.geteuid() == 0 and connection.was_node(invocation.config)
    try:
        return kubeconfig.find(reach.kubeconfig, socket=socket, context=reach.context, own=own)
    except FailedPrecondition as error:
        # The node's own API may not serve yet, as just after a boot.
        if reach.kubeconfig or node_report.of(invocation.config) is None:
            raise
        raise FailedPrecondition(error.message, hint="`podkeep status` says whether this node's API serves") from error


def _dry_run(_ctx: click.Context, _parameter: click.Parameter, value: str) -> bool:
    if value == "client":
        raise click.BadParameter("only the API knows what would be done; --dry-run=server asks it")
    if value not in ("none", "server"):
        # As of `--dry-run pod web`: click takes the next word for the value.
        raise click.BadParameter(f"{value!r} is neither none nor server; write --dry-run=server")
    return value == "server"


dry_run_option = click.option(
    "--dry-run",
    is_flag=False,
    flag_value="server",
    default="none",
    metavar="[=server]",
    callback=_dry_run,
    help="Have the API say what would be done, and do nothing.",
)
"""``--dry-run``, ``--dry-run=server`` or ``=none``, passed to a verb as a bool."""


def api_options(*, everywhere: bool = False) -> Callable[[Function], Function]:
    """Add ``--kubeconfig``, ``--context``, ``-n`` and ``-A`` to a verb, passed to it as one ``reach``."""
    options = [
        click.option("--kubeconfig", metavar="FILE", default="", help="Default: KUBECONFIG, or this node's API."),
        click.option("--context", metavar="NAME", default="", help="Context of the kubeconfig."),
        click.option("-n", "--namespace", metavar="NAME", default="", help="Default: default."),
    ]
    if everywhere:
        options.append(click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In all namespaces."))

    def decorate(function: Function) -> Function:
        decorated: Any = bundle("reach", Reach, "kubeconfig", "context", "namespace", "everywhere")(function)
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate
