"""``podkeep image verify``: compare what is stored with its digests."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from podkeep.cli.core import connection
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.images.command import image_arguments

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import VerifyDamage, VerifySummary


@click.command(name="verify")
@image_arguments(required=False)
@click.option(
    "--repair",
    is_flag=True,
    help="Remove what is damaged and not in use by a container, so that the next pull brings it anew.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@forms.output_option
@pass_invocation
def command(invocation: Invocation, images: tuple[str, ...], repair: bool, quiet: bool, output: str) -> int:
    """Read everything that is stored of images again, and compare it with its digests.

    Without IMAGE all images are checked, and whether something lies in the store that belongs to none. Pulls and
    containers go on meanwhile. The exit status is 1 if something is damaged and was not repaired.

    \b
    Examples:
      podkeep image verify
      podkeep image verify --repair busybox:1
    """

    async def verify(client: CriClient) -> tuple[list[VerifyDamage], VerifySummary]:
        from podkeep.cli.images.progress import on_stderr
        from podkeep.cri.v1 import podkeep_pb2

        damages: list[VerifyDamage] = []
        summary = podkeep_pb2.VerifySummary()
        request = podkeep_pb2.VerifyImagesRequest(images=images, repair=repair)
        with on_stderr(quiet) as display:
            async for event in client.node.VerifyImages(request):
                if event.HasField("damage"):
                    damages.append(event.damage)
                elif event.HasField("summary"):
                    summary = event.summary
                else:
                    step = event.progress
                    display.update(
                        podkeep_pb2.PullProgress(image="images", phase="verifying", done=step.done, total=step.total)
                    )
        return damages, summary

    damages, summary = connection.run(invocation, verify)
    forms.show(output, _values(damages, summary), report(damages, summary))
    return 1 if any(not damage.repaired for damage in damages) else 0


def report(damages: list[VerifyDamage], summary: VerifySummary) -> list[str]:
    """Return what was found, as lines for people, with the commands that fix it."""
    lines = []
    for damage in damages:
        state = "removed" if damage.repaired else "damaged"
        lines.append(f"{state}: {damage.object}: {damage.problem}")
        lines += [f"  in {name}" for name in (damage.names or damage.images)]
        if damage.kept:
            lines.append(f"  kept: {damage.kept}")
    counts = {"image": summary.images, "layer": summary.layers, "document": summary.documents}
    looked = ", ".join(forms.number_of(number, what) for what, number in counts.items())
    fine = "nothing wrong was found" if summary.unchecked else "all well"
    verdict = forms.number_of(len(damages), "damage") if damages else fine
    lines.append(f"checked {looked}, {forms.size(summary.bytes)}: {verdict}")
    if summary.unchecked:
        older = forms.number_of(summary.unchecked, "layer")
        lines.append(
            f"{older} of an older podkeep cannot be checked whole; those that are removed and pulled again can"
        )
    broken = [damage for damage in damages if not damage.repaired]
    if broken:
        lines.append("to fix it: " + fixing(broken))
    gone = sorted({name for damage in damages if damage.repaired for name in damage.names})
    if gone:
        lines.append("to have them again: " + shlex.join(["podkeep", "image", "pull", *gone]))
    return lines


def fixing(damages: list[VerifyDamage]) -> str:
    if any(damage.kept for damage in damages):
        return "remove the pods that use them, then podkeep image verify --repair"
    if any(not damage.images for damage in damages):
        return "podkeep image verify --repair"
    names = sorted({name for damage in damages for name in damage.names})
    repair = shlex.join(["podkeep", "image", "verify", "--repair", *(names or damages[0].images)])
    return repair + (" && " + shlex.join(["podkeep", "image", "pull", *names]) if names else "")


def _values(damages: list[VerifyDamage], summary: VerifySummary) -> dict[str, Any]:
    return {
        **forms.fields(summary, "images", "layers", "documents", "bytes", "unchecked"),
        "damages": [
            {**forms.fields(damage, "object", "problem", "images", "names", "repaired"), "kept": damage.kept or None}
            for damage in damages
        ],
    }
