"""A Yuan2.0 checkpoint in the Hugging Face layout as it shall be served: checked, without what is computed, with its head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from .safetensors_file import TensorSpec
from .tensor_source import Data, Place, TensorSource, Transform, place_of
from .yuan_architecture import COMPUTED, EMBEDDING, HEAD, check


class YuanSource(Transform):
    """Raises CheckpointError at once where the tensors are not those that config.json promises."""

    def __init__(self, inner: TensorSource, config: Mapping[str, Any]) -> None:
        """Check every name, shape and type of `inner`."""
        super().__init__(inner)
        found = list(inner.specs())
        self.size = check(config, found)
        self._specs = [spec for spec in found if not COMPUTED.match(spec.name)]
        # Tied embeddings: the publishers' files hold the head too, partitions of one stage do not.
        self._aliased = not any(spec.name == HEAD for spec in self._specs)
        if self._aliased:
            embedding = next(spec for spec in self._specs if spec.name == EMBEDDING)
            self._specs.append(replace(embedding, name=HEAD))

    @property
    def unchanged(self) -> bool:
        """Whether it is the inner source, tensor for tensor."""
        return len(self._specs) == len(self._inner.specs()) and not self._aliased

    def specs(self) -> Sequence[TensorSpec]:
        """The tensors to be served."""
        return self._specs

    def place(self, name: str) -> Optional[Place]:  # noqa: UP045 - the node's Python may be 3.9
        """Where a tensor lies in the inner source."""
        return place_of(self._inner, self._origin(name))

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows of a tensor."""
        return self._inner.read(self._origin(name), first_row, rows)

    def file_of(self, name: str) -> str:
        """Name of the file that holds a tensor, empty where the inner source does not say."""
        told = getattr(self._inner, "file_of", None)
        return str(told(self._origin(name))) if told else ""

    def _origin(self, name: str) -> str:
        return EMBEDDING if self._aliased and name == HEAD else name
