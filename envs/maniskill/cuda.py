"""Whether ManiSkill's physics can run on a GPU here: a CUDA device, and PhysX's library for it.

SAPIEN's wheel does not hold that library; SAPIEN would fetch it from GitHub when a simulator is built. Nothing is downloaded here: it is asked for.
"""

from __future__ import annotations

from pathlib import Path

import torch

LIBRARY = "libPhysXGpu_64.so"


def require_device() -> None:
    """Raises ValueError where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise ValueError("found no CUDA device, wanted one for env.backend=cuda; env.backend=cpu simulates in worker processes")


def require_library() -> None:
    """Raises ValueError, with the command that fetches it, where PhysX's library is not where SAPIEN looks for it."""
    from sapien import physx  # here because a device can be asked for without it

    folder = Path.home() / ".sapien" / "physx" / physx.version()
    if not (folder / LIBRARY).is_file():
        raise ValueError(
            f"found no {LIBRARY} in {folder}, wanted it for env.backend=cuda: it is not in SAPIEN's wheel, and nothing is downloaded on its own; "
            "fetch it once by python -c 'import sapien.physx; sapien.physx.enable_gpu()' (from github.com/sapien-sim/physx-precompiled), or use env.backend=cpu"
        )
