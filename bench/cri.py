"""Measure any CRI v1 runtime over its socket: ``python -m bench.cri --socket /run/containerd/containerd.sock``.

Prints a table, or one JSON object with ``--json``. The runtime is used as it is; every pod made here is removed again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from bench import measure, memory
from bench.pods import PodOptions, Pods, Unmeasurable
from bench.samples import Samples, Summary


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if not Path(arguments.socket).is_socket():
        print(
            f"bench.cri: {arguments.socket}: no socket there\nhint: start the runtime, or name its socket with --socket"
        )
        return 1
    try:
        result = _run(arguments)
    except grpc.RpcError as error:
        print(f"bench.cri: {arguments.socket}: {error.code().name}: {error.details()}")
        return 1
    except Unmeasurable as error:
        print(f"bench.cri: {arguments.socket}: {error}")
        return 1
    print(json.dumps(result, indent=2) if arguments.json else _table(result))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cri", description="Measure a CRI v1 runtime over its socket."
    )
    parser.add_argument("--socket", required=True, help="path of the runtime's unix socket")
    parser.add_argument("--image", required=True, help="an image with `sleep` and `true`; pulled first")
    parser.add_argument(
        "--pods", type=int, default=20, help="pods to bring up and down one after the other (default 20)"
    )
    parser.add_argument("--userns", action="store_true", help="give each pod its own user namespace")
    parser.add_argument("--host-network", action="store_true", help="use the host's network instead of the pod network")
    parser.add_argument("--handler", default="", help="runtime handler (default: the runtime's)")
    parser.add_argument("--cgroup-parent", default="", help="cgroup for the pods")
    parser.add_argument("--concurrency", type=int, default=0, help="also churn, so many pods at a time")
    parser.add_argument(
        "--scale", type=int, default=0, help="also keep so many pods alive, polling and measuring memory"
    )
    parser.add_argument(
        "--procs",
        default="",
        help="programs whose memory (PSS) is summed at scale, by name, or ~TEXT for a text in the command line;"
        " comma separated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    with Pods(arguments.socket) as pods:
        version = pods.version()
        options = PodOptions(
            image=pods.pull(arguments.image),
            userns=arguments.userns,
            host_network=arguments.host_network,
            handler=arguments.handler,
            cgroup_parent=arguments.cgroup_parent,
        )
        measure.warm_up(pods, options)
        samples = measure.sequential(pods, options, arguments.pods) if arguments.pods else Samples()
        result: dict[str, Any] = {
            "runtime": f"{version.runtime_name} {version.runtime_version}",
            "userns": arguments.userns,
            "milliseconds": _summaries(samples.summaries()),
        }
        if arguments.concurrency:
            rate = measure.churn(
                pods, options, count=max(2 * arguments.pods, arguments.concurrency), concurrency=arguments.concurrency
            )
            result["churn"] = {"concurrency": arguments.concurrency, "pods_per_second": round(rate, 2)}
        if arguments.scale:
            result["scale"] = _scale(pods, options, arguments)
        return result


def _scale(pods: Pods, options: PodOptions, arguments: argparse.Namespace) -> dict[str, Any]:
    patterns = [pattern for pattern in arguments.procs.split(",") if pattern]
    pss: dict[str, int] = {}
    scale = measure.scale(
        pods,
        options,
        count=arguments.scale,
        concurrency=arguments.concurrency or 4,
        probe=lambda: pss.update(memory.pss_kib(memory.by_pattern(patterns))),
    )
    return {
        "pods": scale.pods,
        "up_seconds": round(scale.up_seconds, 2),
        "down_seconds": round(scale.down_seconds, 2),
        "milliseconds": _summaries(scale.polls),
        "failed": scale.failed_polls,
        "pss_kib": {**pss, "total": sum(pss.values())} if patterns else {},
    }


def _summaries(summaries: dict[str, Summary]) -> dict[str, dict[str, float]]:
    return {name: summary.as_json() for name, summary in summaries.items()}


def _table(result: dict[str, Any]) -> str:
    lines = [f"{result['runtime']}{', user namespaces' if result['userns'] else ''}", *_times(result["milliseconds"])]
    if "churn" in result:
        churn = result["churn"]
        lines.append(f"churn, {churn['concurrency']} at a time: {churn['pods_per_second']} pods/s")
    if "scale" in result:
        scale = result["scale"]
        lines.append(f"{scale['pods']} pods: up in {scale['up_seconds']} s, down in {scale['down_seconds']} s")
        lines += _times(scale["milliseconds"])
        lines += [f"{name:<22} {code}" for name, code in scale["failed"].items()]
        lines += [f"PSS {name:<24} {kib / 1024:>8.1f} MiB" for name, kib in scale["pss_kib"].items()]
    return "\n".join(lines)


def _times(summaries: dict[str, dict[str, float]]) -> list[str]:
    header = f"{'milliseconds':<22} {'p50':>8} {'p95':>8} {'n':>5}"
    rows = [f"{name:<22} {row['p50']:>8.2f} {row['p95']:>8.2f} {row['n']:>5.0f}" for name, row in summaries.items()]
    return [header, *rows] if rows else []


if __name__ == "__main__":
    raise SystemExit(main())
