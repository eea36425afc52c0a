"""Worlds: live rank processes that run cases one after another."""

from fuzzshard.world.config import WorldConfig
from fuzzshard.world.device import resolve_device
from fuzzshard.world.spare import Spares
from fuzzshard.world.world import World

__all__ = ["Spares", "World", "WorldConfig", "resolve_device"]
