"""The programs, and the reinforcement learning itself. What must be said before torch is loaded is said here."""

import os

# Threads that wait for work sleep instead of spinning: on a machine that also simulates, spinning takes the cores from those who work (measured: 1.5 to 11 times slower).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
