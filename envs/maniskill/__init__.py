"""ManiSkill behind Gymnasium: `ManiSkillEnv`, and `PutOnPlateEnv` for the put-on-plate protocol.

Importing this package imports no simulator; constructing `ManiSkillEnv` for a task of the table does not either, its first reset does.
"""

from envs.maniskill.env import ManiSkillEnv
from envs.maniskill.put_on_plate.env import PutOnPlateEnv

__all__ = ["ManiSkillEnv", "PutOnPlateEnv"]
