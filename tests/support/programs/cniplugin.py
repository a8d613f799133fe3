"""A CNI plugin; what it does is described in :mod:`support.cniplugin`, which puts a first line before this one."""

import json
import os
import sys
import time
from pathlib import Path

here = Path(sys.argv[0] + ".d")
command, conf = os.environ["CNI_COMMAND"], json.load(sys.stdin)
names = ("CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH")
call = {name: os.environ[name] for name in names if name in os.environ}
call["netns_is_there"] = os.path.exists(call.get("CNI_NETNS") or "/nowhere")
with (here / "calls").open("a") as file:
    file.write(json.dumps({"environment": call, "stdin": conf}) + "\n")
order = json.loads((here / "orders").read_text()).get(command, {})
attached = here / "attached"
if command == "ADD":
    (attached / call["CNI_CONTAINERID"]).touch()
if "sleep" in order:
    time.sleep(order["sleep"])
if "exit" in order:
    print("it broke", file=sys.stderr)
    sys.exit(order["exit"])
if "code" in order:
    print(json.dumps({"cniVersion": conf["cniVersion"], **order}))
    sys.exit(1)
if "print" in order:
    print(order["print"])
elif command == "VERSION":
    print(json.dumps({"cniVersion": "1.1.0", "supportedVersions": json.loads((here / "versions").read_text())}))
elif command == "ADD":
    interfaces = [{"name": "eth0", "sandbox": call["CNI_NETNS"]}]
    ips = [{"address": "2001:db8:7::9/64", "interface": 0}, {"address": "203.0.113.9/24", "interface": 0}]
    given = {"interfaces": interfaces, "ips": ips}
    result = conf.get("prevResult") or {"cniVersion": conf["cniVersion"], **given}
    print(json.dumps(result))
elif command == "DEL":
    (attached / call["CNI_CONTAINERID"]).unlink(missing_ok=True)
elif command == "GC":
    valid = [item["containerID"] for item in conf["cni.dev/valid-attachments"]]
    for name in set(os.listdir(attached)) - set(valid):
        (attached / name).unlink()
