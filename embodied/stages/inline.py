"""What stages have in common that do their work in the call itself: nothing comes in later, and a lease brings and takes what they hold."""

from __future__ import annotations

from embodied.learning.memory.residence import Lease


class Inline:
    lease = Lease(())  # of a stage that holds nothing on a device

    def ready(self, timeout: float | None) -> list:
        return []

    def load(self) -> None:
        self.lease.take()

    def unload(self) -> None:
        self.lease.release()

    def close(self) -> None:
        """Holds nothing that must be closed."""
