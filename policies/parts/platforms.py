"""What a published OpenVLA-OFT folder leaves unsaid: constants that its robot decides, found by the name of its statistics.

The numbers are those of the reference implementation (moojink/openvla-oft, prismatic/vla/constants.py), which takes them from the words on
its command line; the cameras are those its evaluation scripts show.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    name: str  # stands in the key of its statistics, as in "libero_spatial_no_noops"
    chunk: int  # C: actions per inference
    normalization: str  # "q99" | "bounds": which statistics mean -1 and 1, of actions and of the state
    cameras: tuple[str, ...]  # of policies with a regression head
    gripper: str | None  # the model's convention for the last dim; None where it is one more joint angle


PLATFORMS = (
    Platform("libero", 8, "q99", ("agentview", "wrist"), "open_1_close_0"),
    Platform("aloha", 25, "bounds", ("cam_high", "cam_left_wrist", "cam_right_wrist"), None),  # absolute joint angles: no outlier may be cut off
    Platform("bridge", 5, "q99", ("agentview",), "open_1_close_0"),
)
UNKNOWN = Platform("unknown", 8, "q99", ("agentview",), "open_1_close_0")  # what a discrete policy of a robot without constants takes


def platform_of(key: str) -> Platform:
    """The robot whose name stands in the key of a set of statistics; UNKNOWN where none does."""
    return next((platform for platform in PLATFORMS if platform.name in key.lower()), UNKNOWN)
