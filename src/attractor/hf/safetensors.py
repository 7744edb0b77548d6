"""Read the weights of a folder from safetensors files, one tensor at a time.

    8 bytes, the length of the table;   the table as JSON: name -> dtype, shape, first and last byte;   the bytes

Files are read and not mapped into memory: a mapped file counts as memory of the process while it is open, so a model
that is copied from it would count twice. Pickled files are refused, since loading one runs whatever program it holds.
"""

import hashlib
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.files import from_json, read_regular

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pth", "*.pt", "*.ckpt", "*.pkl")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LONGEST_TABLE = 100_000_000  # bytes, as the format itself says
LARGEST_OBJECT = 256 << 20  # bytes of a file of JSON, such as a tokenizer
CONVERSION = "from transformers import AutoModelForCausalLM as M; M.from_pretrained({0!r}).save_pretrained({1!r})"


@dataclass(frozen=True)
class StoredTensor:
    """The position of a tensor in a file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def torch_dtype(self) -> torch.dtype:
        if self.dtype not in DTYPES:
            raise InputError(
                f"'{self.name}' must be stored as one of {', '.join(DTYPES)}, got {self.dtype} in '{self.file}'; give "
                "the model's folder from before it was quantised"
            )
        return DTYPES[self.dtype]

    def read(self, dtype: torch.dtype | None = None) -> Tensor:
        tensor = torch.empty(self.shape, dtype=self.torch_dtype)
        with self.file.open("rb") as file:
            file.seek(self.begin)
            file.readinto(tensor.view(-1).view(torch.uint8).numpy().data)
        return tensor if dtype is None else tensor.to(dtype)


@dataclass(frozen=True)
class StoredWeights:
    """The tensors of a folder by name."""

    folder: Path
    tensors: dict[str, StoredTensor]

    @classmethod
    def open(cls, folder: Path) -> Self:
        tensors: dict[str, StoredTensor] = {}
        for file in files_of(folder):
            tensors |= dict(table_of(file))
        return cls(folder, tensors)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the weights' file, or of the digests of all files in the order of their names."""
        digests = []
        for file in sorted({stored.file for stored in self.tensors.values()}):
            with file.open("rb") as content:
                digests.append(hashlib.file_digest(content, "sha256").hexdigest())
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def files_of(folder: Path) -> list[Path]:
    """Return the files of weights: a single one or, where there is none, the shards that the index names."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        weight_map = read_object(folder / INDEX).get("weight_map", {})
        named = [*weight_map.values()] if isinstance(weight_map, dict) else [weight_map]
        wrong = [name for name in named if not isinstance(name, str) or Path(name).name != name]
        if wrong:
            raise InputError(
                f"weight_map in '{folder / INDEX}' must hold names of files in its own folder, and has {wrong[0]!r}; "
                "fetch the model again"
            )
        names = sorted(set(named))
        for name in names:
            if not (folder / name).is_file():
                raise InputError(
                    f"shard '{name}' must be in '{folder}', as {INDEX} says, and is missing; fetch it again"
                )
        return [folder / name for name in names]
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        code = CONVERSION.format(str(folder), f"{folder}-safe")
        raise InputError(
            f"weights must be safetensors, got '{pickled[0]}' in '{folder}', which is pickled and may run any program; "
            f"if you trust it, convert it once with: python -c {shlex.quote(code)}"
        )
    raise InputError(f"weights must be {SINGLE}, or shards with {INDEX}, and '{folder}' has neither; give another")


def table_of(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    size = file.stat().st_size
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        table = content.read(length) if 0 < length <= min(LONGEST_TABLE, size - 8) else b""
    try:
        described = {name: _entry(entry) for name, entry in from_json(table).items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise _damaged(file) from None
    for name, (dtype, shape, begin, end) in described.items():
        # Buffers that are no weights may have any dtype.
        size_is_right = all(0 <= n < 2**63 for n in shape) and (
            dtype not in DTYPES or end - begin == math.prod(shape) * DTYPES[dtype].itemsize
        )
        if not size_is_right or not 0 <= begin <= end <= size - 8 - length:
            raise _damaged(file)
        yield name, StoredTensor(name, file, dtype, shape, 8 + length + begin)


def _entry(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    begin, end = entry["data_offsets"]
    return str(entry["dtype"]), tuple(map(int, entry["shape"])), int(begin), int(end)


def read_object(path: Path) -> dict[str, Any]:
    try:
        value = from_json(read_regular(path, LARGEST_OBJECT, "fetch it again").decode())
    except InputError:
        raise
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InputError(f"'{path}' is damaged: it must hold one JSON object; fetch it again")
    return value


def _damaged(file: Path) -> InputError:
    return InputError(f"'{file}' is damaged, or cut short: it does not hold what its table says; fetch it again")
