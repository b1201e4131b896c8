"""LIBERO behind Gymnasium: `LiberoEnv`, also `gymnasium.make("envs.libero:m2flow/Libero-v0")`.

Importing this package imports no simulator; constructing `LiberoEnv` does not either, its first reset does.
"""

import gymnasium

from envs.libero.env import LiberoEnv

__all__ = ["LiberoEnv"]

if "m2flow/Libero-v0" not in gymnasium.registry:
    # The env counts its own budget and ends its own episodes; wrappers would only count a second time.
    gymnasium.register("m2flow/Libero-v0", entry_point="envs.libero.env:LiberoEnv", order_enforce=False)
