"""Schedules for Trainium-like cores: tiles over partitions in SBUF and PSUM."""

from tilesmith.families.trainium.schedules.building_blocks.machine import TRAINIUM

__all__ = ["TRAINIUM"]
