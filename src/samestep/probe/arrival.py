"""Arrival: calls back when a module has been imported by somebody else.

Torch reads the environment (threads, visible devices) when it is loaded, and programs set that up before
their own import of it: so the probe must not be the first to load it.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Arrival(MetaPathFinder):
    """Waits for the import of the module `name`, then calls `then` once; at once if it is there already.

    Of several that wait for one module, the first installed is the first told.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def install(self) -> None:
        if self._name in sys.modules:
            self._then()
        else:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        # only those behind this one, since another may wait for the same module
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Announced(spec.loader, self._arrived)
                return spec
        return None

    def _arrived(self) -> None:
        self.uninstall()
        self._then()


class _Announced(Loader):
    """A loader that tells when it is done; the module itself keeps its true one."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        spec.loader = self._loader
        try:
            return self._loader.create_module(spec)
        finally:
            spec.loader = self

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()
