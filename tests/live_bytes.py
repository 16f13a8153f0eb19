"""How many bytes of tensors live at once, on any device: what a GPU would have to hold."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within: every storage that an operation makes is counted for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._seen: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {id(one.untyped_storage()) for one in tree_leaves(args) if isinstance(one, Tensor)}
        for one in tree_leaves(made):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                if id(storage) not in given and id(storage) not in self._seen:
                    self._count(storage)
        return made

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()

        def gone(_: Any) -> None:
            del self._seen[key]
            self.live -= size

        self._seen[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)
