"""A process that owns an image store: opens it and pulls an image.

image_owner.py ROOT MOUNTED DRIVER NAME ends|uses

Then it closes the store and ends, or it mounts the image's layers, prints ``mounted``, and stays until its standard
input ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from podkeep.base.config import ImagesConfig, RegistryConfig
from podkeep.images.store.store import ImageStore

root, mounted, driver, name, then = sys.argv[1:]
registries = {name.partition("/")[0]: RegistryConfig(insecure=True)}
config = ImagesConfig(snapshot_driver=driver)
store = ImageStore.open(Path(root), config=config, registries=registries, mounted=Path(mounted))
image = asyncio.run(store.pull(name))
if then == "uses":
    store.lowers(image, userns=None)
    print("mounted", flush=True)
    sys.stdin.read()
else:
    store.close()
