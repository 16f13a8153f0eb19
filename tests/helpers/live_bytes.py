"""How many bytes of tensors live at once, on any device: what a GPU would have to hold."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count every storage that an operation inside the block makes, for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._seen: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        input_storages = {
            id(tensor.untyped_storage())
            for tensor in tree_leaves(args)
            if isinstance(tensor, Tensor)
        }
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in input_storages and id(storage) not in self._seen:
                    self._count(storage)
        return output

    def _count(self, storage: Any) -> None:
        """Count a new storage until it is freed."""
        key = id(storage)
        size = storage.nbytes()

        def forget(_: Any) -> None:
            """Subtract the storage that was freed."""
            del self._seen[key]
            self.live -= size

        self._seen[key] = weakref.ref(storage, forget)
        self.live += size
        self.peak = max(self.peak, self.live)
