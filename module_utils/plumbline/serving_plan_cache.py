"""vLLM's key-value cache in figures: pages, blocks, and how many tokens a number of bytes holds. Pure, standard library only.

Retells v1/core/kv_cache_utils.py (get_kv_cache_groups, get_kv_cache_config_from_groups, get_kv_cache_capacity), v1/kv_cache_interface.py
(page_size_bytes and max_memory_usage_bytes of each kind of layer) and platforms/interface.py (_align_hybrid_block_size) of vLLM 0.32.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from .serving_plan_shape import Layer, Shape
from .serving_plan_state import CHECKPOINTED_MODELS, recurrent_bytes, state_parts

# Bytes of an element of the cache by kv_cache_dtype. Types that pack scales beside it: what they take at most.
KV_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "nvfp4": 0.5625,
    "nvfp4_4over6": 0.5625,
}
# FlashMLA's own layout: 512 bytes, 16 of scales, 64 elements of rope in two bytes (MLA with fp8 on sparse attention).
_DS_MLA_BYTES = 656
_PER_HEAD_SCALE = 4


def ceil_div(value: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-value // by)


@dataclass(frozen=True)
class Setting:
    """What the cache depends on beside the model. `prefix_caching`: where it is on, a state keeps two blocks for a request."""

    element_bytes: int
    kv_cache_dtype: str
    tensor_parallel: int
    on_cpu: bool
    block_size: int | None
    maximum_batched_tokens: int
    prefix_caching: bool
    one_kind: bool
    wide_state: bool
    amx: bool = False
    batches_in_flight: int = 1


@dataclass(frozen=True)
class Page:
    """A layer's block: how many tokens it holds, in how many bytes. Layers that are equal share their blocks."""

    kind: str
    block_size: int
    size: int
    window: int = 0
    page: int = 0
    checkpoints: int = 0

    @property
    def bytes(self) -> int:
        """With what vLLM pads it by."""
        return max(self.page, self.size)

    def blocks(self, length: int, setting: Setting) -> int:
        """Blocks that a request of `length` tokens holds at most in one layer (max_memory_usage_bytes / page_size_bytes)."""
        flying = setting.batches_in_flight * setting.maximum_batched_tokens
        if self.kind == "state":
            return 2 + self.checkpoints if setting.prefix_caching else 1
        if self.kind == "sliding":
            return ceil_div(min(self.window - 1 + flying, length), self.block_size) + 1
        if self.kind == "chunked":
            return ceil_div(min(self.window + flying, length), self.block_size)
        return ceil_div(length, self.block_size)


@dataclass(frozen=True)
class Cache:
    """The groups of layers that share block tables, and the bytes of one block of the pool in one process."""

    groups: tuple[tuple[Page, int], ...]
    bytes_per_block: int
    block_size: int
    setting: Setting

    def blocks_per_request(self, length: int) -> int:
        """Blocks of the pool that one request of `length` tokens takes at most."""
        return sum(page.blocks(length, self.setting) for page, _ in self.groups)

    def request_bytes(self, length: int) -> int:
        """Bytes that one request of `length` tokens takes, and the block that vLLM holds back (BlockPool's null block)."""
        return (self.blocks_per_request(length) + 1) * self.bytes_per_block

    def tokens(self, available: int, length: int) -> int:
        """Tokens as vLLM logs them for so many bytes: requests of full length that fit, times that length (get_kv_cache_capacity)."""
        if length < 1:
            return 0
        return int((available // self.bytes_per_block) / max(self.blocks_per_request(length), 1) * length)

    def longest(self, available: int, limit: int) -> int:
        """The longest request, up to `limit` tokens, that so many bytes hold; 0 where not even one token fits."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_bytes(middle) <= available else (low, middle - 1)
        return low


def element_cost(setting: Setting) -> float:
    """Bytes of one element of keys and values."""
    wish = setting.kv_cache_dtype
    if wish in ("", "auto"):
        return float(setting.element_bytes)
    if (
        wish.startswith("int4")
        or wish.startswith("turboquant_3")
        or wish.startswith("turboquant_4")
        or wish == "ultraquant_4bit"
    ):
        return 0.625
    return KV_BYTES.get(wish, 1.0)


def layer_page(layer: Layer, shape: Shape, setting: Setting, block_size: int) -> Page:
    """The page of one layer before pages are made equal."""
    if layer.kind == "state":
        wide = recurrent_bytes(shape.model_type, shape.config, setting.element_bytes, setting.wide_state)
        parts = state_parts(shape.model_type, shape.config, setting.tensor_parallel)
        size = sum(elements * (wide if recurrent else setting.element_bytes) for elements, recurrent in parts)
        return Page("state", block_size, size, checkpoints=int(shape.model_type in CHECKPOINTED_MODELS))
    if layer.kind == "index":
        return Page("mla", block_size, layer.head_size * block_size)
    if layer.kind == "mla":
        if setting.kv_cache_dtype.endswith("ds_mla"):
            return Page("mla", block_size, _DS_MLA_BYTES * block_size)
        return Page("mla", block_size, int(layer.head_size * element_cost(setting) * block_size))
    # Heads are copied where there are fewer of them than processes (config/model.py, get_num_kv_heads).
    heads = max(1, layer.kv_heads // setting.tensor_parallel)
    token = heads * (layer.head_size + layer.head_size_v) * element_cost(setting)
    if setting.kv_cache_dtype.endswith("per_token_head"):
        token += heads * 2 * _PER_HEAD_SCALE
    kind = "full" if setting.one_kind else layer.kind
    return Page(kind, block_size, int(token * block_size), 0 if kind == "full" else layer.window)


def block_size_of(shape: Shape, setting: Setting) -> int:
    """Tokens a block before states are fitted in: platforms/cpu.py on a CPU; 64 for MLA on a GPU (its backends take 32 to 128), else 16."""
    if setting.on_cpu:
        if shape.uses_mla and not setting.amx:
            return 16
        return setting.block_size or 128
    return setting.block_size or (64 if shape.uses_mla else 16)


def make_cache(shape: Shape, setting: Setting) -> Cache | None:
    """The cache of a model; `None` where it keeps none, or what its layers keep is not known."""
    if shape.unknown or not shape.layers:
        return None
    block = block_size_of(shape, setting)
    states = [layer for layer in shape.layers if layer.kind == "state"]
    attention = [layer for layer in shape.layers if layer.kind in ("full", "mla")] or [
        layer for layer in shape.layers if layer.kind != "state"
    ]
    padded = 0
    if states and attention:
        token = layer_page(attention[0], shape, setting, 1).size
        state = layer_page(states[0], shape, setting, block).size
        # _align_hybrid_block_size: attention's page is made at least as large as the state, the state's as large as that.
        step = max(128, block) if shape.uses_mla else block
        block = max(block, step * ceil_div(state, step * max(token, 1)))
        padded = block * token
    pages = [layer_page(layer, shape, setting, block) for layer in shape.layers]
    pages = [replace(page, page=max(padded, page.size)) if page.kind == "state" else page for page in pages]
    if any(page.size <= 0 for page in pages):
        return None
    groups = _group(pages)
    return Cache(tuple(groups), max(page.bytes * count for page, count in groups), block, setting)


def _group(pages: list[Page]) -> list[tuple[Page, int]]:
    """Groups of layers, each with its page (the mean one where pages of a group differ) and the number of layers."""
    total = sum(page.bytes for page in pages)
    kinds = {(("attention", 0) if page.kind in ("full", "mla") else (page.kind, page.window)) for page in pages}
    if len(kinds) == 1 and (pages[0].kind != "state" or len({page.bytes for page in pages}) == 1):
        # One kind: all layers in one group, also where their heads differ (UniformTypeKVCacheSpecs).
        return [(replace(pages[0], page=ceil_div(total, len(pages))), len(pages))]
    largest = max(page.bytes for page in pages)
    equal = []
    for page in pages:
        # unify_kv_cache_spec_page_size: more tokens a block where that fits exactly, else padding.
        ratio = largest // page.bytes if page.kind != "state" and largest % page.bytes == 0 else 1
        equal.append(replace(page, block_size=page.block_size * ratio, size=page.size * ratio, page=largest))
    buckets = Counter(replace(page, size=0) for page in equal)
    fewest, most = min(buckets.values()), max(buckets.values())
    size = most if most < fewest * 1.5 else fewest
    return [(page, size) for page, count in buckets.items() for _ in range(ceil_div(count, size))]
