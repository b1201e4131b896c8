"""ManiSkill behind Gymnasium: `ManiSkillEnv`.

Importing this package imports no simulator; constructing `ManiSkillEnv` for a task of the table does not either, its first reset does.
"""

from envs.maniskill.env import ManiSkillEnv

__all__ = ["ManiSkillEnv"]
