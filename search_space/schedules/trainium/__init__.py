"""Schedules for Trainium-like cores: tiles over partitions in SBUF and PSUM."""

from tilesmith.search_space.schedules.trainium.machine import TRAINIUM

__all__ = ["TRAINIUM"]
