"""Programs that tests use and that are no packages of Python: of the system, or brought by `make install`."""

import os
import shutil
import sysconfig


def tool(*names: str) -> str | None:
    """Where the first of these programs is that is there at all."""
    places = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin", sysconfig.get_path("scripts")])
    return next(filter(None, (shutil.which(name, path=places) for name in names)), None)


BROWSER = tool("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
NGINX, NFT = tool("nginx"), tool("nft")
