"""What a request asks for, computed from its method and target alone (apiserver: ``RequestInfo``). Pure."""

from __future__ import annotations

from urllib.parse import unquote

from podkeep.apiserver.auth.interfaces import RequestAttributes
from podkeep.apiserver.meta.objects import path_segment
from podkeep.apiserver.meta.selectors import parse_fields
from podkeep.apiserver.meta.status import StatusError, bad_request
from podkeep.apiserver.requests.query import Query

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_WITH_SELECTORS = frozenset({"list", "watch", "deletecollection"})
READ_ONLY = frozenset({"get", "list", "watch"})


class RequestInfo(RequestAttributes, kw_only=True):
    """What is asked for: what authorizers are told, and what is not theirs to know.

    ``path`` is decoded. ``rest`` are the parts of the path behind the subresource, as ``pods/NAME/proxy`` has them.
    """

    rest: tuple[str, ...] = ()
    parts: int = 0
    """How many parts the path has from the resource on: a list has one, also if ``name`` is known from a selector."""
    in_namespace: bool = False
    """Whether the path has a namespace before the resource. That of a namespace itself has none; ``namespace`` has its
    name all the same, for authorizers."""

    @property
    def api_version(self) -> str:
        """The group and version, as ``apiVersion`` has them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def is_long_running(self) -> bool:
        """Whether the request is not counted as one at a time: it may go on for as long as the client likes."""
        return self.verb == "watch" or self.subresource in ("log", "exec", "attach", "portforward", "proxy")


def parse(method: str, target: str, query: Query) -> RequestInfo:
    """Return what a request asks for.

    :param target: path and query as the client sent them.
    :raises StatusError: 400, if the path begins as a resource's and is none.
    """
    path = unquote(target.partition("?")[0], errors="replace")
    parts = path.strip("/").split("/")
    verb = method.lower()
    if parts[0] == "api" and len(parts) >= 3:
        group, version, parts = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, parts = parts[1], parts[2], parts[3:]
    else:
        return RequestInfo(path=path, verb=verb, resource_request=False)
    verb = _VERBS.get(method, "")
    watches = parts[0] == "watch"
    if watches:
        if len(parts) < 2:
            raise bad_request(f"unable to determine kind and namespace from url, {path[:200]}")
        verb, parts = "watch", parts[1:]
    namespace, in_namespace = "", False
    if parts[0] == "namespaces" and len(parts) > 1:
        namespace = parts[1]
        # /namespaces/NAME/status is a part of the namespace, /namespaces/NAME/pods is what is in it.
        in_namespace = len(parts) > 2 and parts[2] not in _NAMESPACE_SUBRESOURCES
        if in_namespace:
            parts = parts[2:]
    name = parts[1] if len(parts) > 1 else ""
    if not name and verb in ("get", "delete"):
        verb = "deletecollection" if verb == "delete" else "watch" if query.boolean("watch") else "list"
    selected = "" if name or verb not in ("list", "watch") else _selected_name(query)
    return RequestInfo(
        path=path,
        verb=verb,
        group=group,
        version=version,
        resource=parts[0],
        subresource=parts[2] if len(parts) > 2 else "",
        namespace=namespace,
        name=name or selected,
        rest=tuple(parts[3:]),
        label_selector=query.text("labelSelector") if verb in _WITH_SELECTORS and not watches else "",
        field_selector=query.text("fieldSelector") if verb in _WITH_SELECTORS and not watches else "",
        parts=len(parts),
        in_namespace=in_namespace,
    )


def _selected_name(query: Query) -> str:
    """Return the one name that a field selector selects; empty if it selects several, or cannot be read."""
    text = query.text("fieldSelector")
    if "metadata.name" not in text:
        return ""
    try:
        name = parse_fields(text).value("metadata.name") or ""
    except StatusError:
        return ""
    return "" if path_segment(name) else name


def check_name(info: RequestInfo) -> None:
    """Refuse a name that no path may have.

    :raises StatusError: 400.
    """
    if why := path_segment(info.name):
        raise bad_request(f'invalid resource name "{info.name[:80]}": [{why}]')
