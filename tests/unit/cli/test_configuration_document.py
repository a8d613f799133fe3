"""docs/configuration.md lists every key of the configuration with its default."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from podkeep.base import config

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "[api]": config.ApiConfig,
    "[log]": config.LogConfig,
    "[runtime]": config.RuntimeConfig,
    "[runtime.handlers.NAME]": config.HandlerConfig,
    "[mountns]": config.MountnsConfig,
    "[class_resources]": config.ClassResourcesConfig,
    '[class_resources.types."TYPE"]': config.CustomType,
    '[class_resources.types."TYPE".classes."CLASS"]': config.CustomClass,
    "[network]": config.NetworkConfig,
    "[images]": config.ImagesConfig,
    "[images.referrers]": config.ReferrersConfig,
    "[metrics]": config.MetricsConfig,
    "[agent]": config.AgentConfig,
    "[agent.authentication]": config.AuthenticationConfig,
    "[agent.authentication.x509]": config.X509Config,
    "[agent.authentication.webhook]": config.TokenWebhookConfig,
    "[agent.authentication.anonymous]": config.AnonymousConfig,
    "[agent.authorization]": config.AuthorizationConfig,
    "[agent.authorization.webhook]": config.AccessWebhookConfig,
    "[agent.crash_loop_back_off]": config.CrashLoopBackOffConfig,
    "[agent.user_namespaces]": config.UserNamespacesConfig,
    "[node]": config.NodeConfig,
    "[streaming]": config.StreamingConfig,
    "[api.admission]": config.AdmissionConfig,
    "[api.admission.pod_security]": config.PodSecurityConfig,
    '[registries."HOST[:PORT]"]': config.RegistryConfig,
}


def documented() -> dict[str, dict[str, str]]:
    """Return the default, as written, by key, by section."""
    sections: dict[str, dict[str, str]] = {}
    for block in DOCUMENT.read_text().split("\n## ")[1:]:
        title = block.partition("\n")[0].strip("`")
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| .+ \|$", block, flags=re.MULTILINE)
        sections[title] = dict(rows)
    return sections


def written(field: msgspec.structs.FieldInfo) -> str:
    if field.name == "handlers":
        return "`crun` at `/usr/bin/crun`"
    if field.required:
        return "required"
    made = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"`{json.dumps(made)}`"


def test_every_section_is_documented() -> None:
    assert documented().keys() == SECTIONS.keys()
    tables = {field.name for field in msgspec.structs.fields(config.Config)}
    assert tables == {re.split(r"[.\]]", title[1:])[0] for title in SECTIONS}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_is_documented_with_its_default(title: str) -> None:
    fields = msgspec.structs.fields(SECTIONS[title])
    keys = [field for field in fields if not isinstance(field.default, msgspec.Struct)]  # those have their own section
    assert documented()[title] == {field.name: written(field) for field in keys}


def test_the_default_handler_is_as_documented() -> None:
    assert config.RuntimeConfig().handlers == {"crun": config.HandlerConfig(path="/usr/bin/crun")}


def test_the_example_is_valid() -> None:
    example = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    assert example is not None
    assert msgspec.convert(tomllib.loads(example[1]), config.Config).network.subnet == "10.200.0.0/16"
