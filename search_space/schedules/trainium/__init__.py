"""Schedules for Trainium-like cores: tiles over partitions in SBUF and PSUM."""
