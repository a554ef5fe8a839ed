"""Registers the emitter of CPUs: how a compiled model becomes a library with a C header."""

from tilesmith.compiler.backends.shipping import (
    Library,
    LibraryEmitter,
    LibraryRequest,
    Shippable,
    emitters,
)


@emitters.register("cpu")
class CpuEmitter(LibraryEmitter):
    """Objects of native code, linked; what it needs is imported when it is asked."""

    def emit(self, recipe: Shippable, request: LibraryRequest) -> Library:
        from tilesmith.capabilities.c_library.plans.library import emit

        return emit(recipe, request)
