"""``podkeep kubeconfig``: how kubectl and other clients get at the API, as its administrator or as somebody else.

Owns: the options. Does not own: certificates (``apiserver.server.certificates``), or what a user may do (RBAC).
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation


@click.command(name="kubeconfig")
@click.option("--user", metavar="NAME", help="Make a certificate for this user; else it is the administrator's.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group of the user; may be given again.")
@click.option("--days", type=click.IntRange(1, 3650), help="How long the user's certificate is good; default: 365.")
@click.option("--server", metavar="URL", help="Where the API is; default: api.address, on this machine.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it there, for its owner's eyes alone, and do not print it.",
)
@click.option("--root", metavar="DIR", help="As api.root: the API's keys and certificates.")
@pass_invocation
def command(
    invocation: Invocation,
    user: str | None,
    groups: tuple[str, ...],
    days: int | None,
    server: str | None,
    file: Path | None,
    root: str | None,
) -> None:
    """Print a kubeconfig for this machine's API.

    A user may do nothing before a role is bound to them, or to one of their groups.

    \b
    Examples:
      podkeep kubeconfig --file ~/.kube/config
      podkeep kubeconfig --user ann --group dev --file ann.conf
      kubectl create clusterrolebinding ann --clusterrole=view --user=ann
    """
    from podkeep.apiserver.auth.user import ADMIN
    from podkeep.apiserver.server import certificate_orders, certificates, kubeconfig
    from podkeep.base import atomicfile

    if root is not None:
        invocation.override(f"api.root={root}")
    if user is None and (groups or days is not None):
        raise InvalidArgument("--group and --days are of a user", hint="add --user NAME")
    config = invocation.config
    files = certificates.Files(Path(config.api.root))
    url = server or _url(config.api.endpoint())
    pair: certificate_orders.Pair | tuple[str, str]
    try:
        authority = files.certificate(certificates.AUTHORITY).read_text()
        if user is None:
            name = ADMIN
            pair = (files.certificate("admin").read_text(), files.key("admin").read_text())
        else:
            name = user
            wanted = certificates.client("user", user, groups, days or certificate_orders.DAYS)
            pair = certificates.issue(files, wanted, int(time.time()))
    except FileNotFoundError as error:
        raise FailedPrecondition(
            f"the API has no authority yet: {error.filename} is missing", hint="start `podkeep api` once"
        ) from error
    except PermissionError as error:
        raise FailedPrecondition(f"{error.filename} cannot be read", hint="run it as root") from error
    text = kubeconfig.kubeconfig(url, authority, name, pair)
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not _is_replaceable(file):
            raise FailedPrecondition(
                f"{file} is there and holds something else",
                hint="write to another file, and name both to kubectl: KUBECONFIG=FILE:OTHER",
            )
        atomicfile.write(file, text.encode())
    except OSError as error:
        raise FailedPrecondition(f"{file} cannot be written: {error.strerror}") from error
    forms.echo_line(f"{file}: {name} at {url}")


def _url(endpoint: tuple[str, int] | None) -> str:
    """Return where the API is that listens there.

    :raises FailedPrecondition: if it listens nowhere.
    """
    from podkeep.apiserver.server.kubeconfig import server_url

    if endpoint is None:
        raise FailedPrecondition(
            "the API is not served over TLS: api.address is empty",
            hint="name its URL with --server, or set api.address",
        )
    return server_url(*endpoint)


def _is_replaceable(file: Path) -> bool:
    """Return whether nothing is lost with the file: it is absent, empty, or has this API's cluster alone."""
    import msgspec

    from podkeep.apiserver.server import kubeconfig

    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return True
    if not data.strip():
        return True
    try:
        return kubeconfig.is_own(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
