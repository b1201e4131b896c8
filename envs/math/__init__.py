"""Math problems behind Gymnasium: `MathEnv`, a problem as text in, an answer as text back.

Importing this package imports no library of problems; choosing one that needs such a library does.
"""

from envs.math.env import MathEnv

__all__ = ["MathEnv"]
