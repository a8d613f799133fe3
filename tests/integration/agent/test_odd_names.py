"""Names of a pod's volumes that the kernel writes into its table of mounts as they are."""

from __future__ import annotations

from agent.conftest import Runner, until
from agent.manifests import mount, pod, shell

VOLUMES = [{"name": "volume", "emptyDir": {}}]


def test_a_sub_path_with_a_carriage_return(own_runner: Runner, image: str) -> None:
    """It had every later pod of the node fail, and the runtime not start again."""
    own_runner.daemon.start()
    document = pod(shell(image, "ls -d /v", volumeMounts=[mount("/v", subPath="a\rb")]), name="odd", volumes=VOLUMES)
    odd = own_runner.run(document)
    assert (odd.returncode, odd.stdout) == (0, "/v\n"), odd.stderr
    good = own_runner.run(pod(shell(image, "echo good"), name="good"))
    assert (good.returncode, good.stdout) == (0, "good\n"), good.stderr


def test_a_runtime_starts_again_while_such_a_pod_is_there(own_runner: Runner, image: str) -> None:
    own_runner.daemon.start()
    script = 'cd /volume; d=$(printf \'a\\rb\'); mkdir "$d"; ln -s "$d" x'
    make = shell(image, script, name="make", volumeMounts=[mount("/volume")])
    main = shell(image, "trap 'exit 0' TERM; echo up; sleep 1000 & wait", volumeMounts=[mount("/v", subPath="x")])
    with own_runner.start(pod(main, name="odd", initContainers=[make], volumes=VOLUMES)) as process:
        until(lambda: any(row["name"] == "odd" and "Running" in str(row) for row in own_runner.rows()), "the pod")
        own_runner.daemon.kill()
        own_runner.daemon.start()
        removed = own_runner.daemon.run("rm", "odd")
        assert removed.returncode == 0, removed.stderr
        process.communicate(timeout=60)
