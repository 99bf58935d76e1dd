"""The kinds of ops that simdev knows, a family a module; importing a module registers its kinds."""

from . import attention, elementwise, movement, norm, product, reduction, windows

__all__ = ["attention", "elementwise", "movement", "norm", "product", "reduction", "windows"]
