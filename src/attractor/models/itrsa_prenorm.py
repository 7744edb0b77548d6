"""Pre-norm ItrSA: repeated attention on a normalised residual stream, followed by one MLP.

    X <- X + MSA(Norm(X)),   T times;   X <- X + MLP(Norm(X)),   once                                       (1)

X starts as the embedded input, which is not injected later, so no cell may start from noise. The stream grows with T,
like that of T layers. Norm is RMSNorm, where the paper has LayerNorm.
This is the baseline that the authors of AKOrN call ItrSA: Miyato et al., Artificial Kuramoto oscillatory neurons, 2024,
arXiv 2410.13821. The ItrSA of Jacobians, normalised and with injection, is in `itrsa.py`.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor, nn

from attractor.models.block import Block
from attractor.models.recurrent import IterationInputs, RecurrentConfig, RecurrentModel


@dataclass(frozen=True)
class PreNormItrSAConfig(RecurrentConfig["PreNormItrSA"]):
    family: ClassVar[str] = "itrsa-prenorm"

    blank: int | None = None

    def __post_init__(self) -> None:
        self.require_stimulus_at_the_start()
        super().__post_init__()

    @property
    def attention_modules(self) -> tuple[str, ...]:
        return ("block.attention",)

    def build_uninitialised(self) -> "PreNormItrSA":
        return PreNormItrSA(self)


class PreNormItrSA(RecurrentModel):
    config: PreNormItrSAConfig

    def build_core(self) -> None:
        self.block = Block(self.config, self.config.attention_config, layer_index=0)

    def response(self, state: Tensor, stimulus: Tensor, inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        return self.block.attend(state, inputs.mask, inputs.rotation, None)

    def moved(self, state: Tensor, response: Tensor, inputs: IterationInputs) -> Tensor:
        return state + response

    def normalised(self, x: Tensor) -> Tensor:
        return x

    def finished(self, state: Tensor) -> Tensor:
        return state + self.block.transform(state)

    def residual_outputs(self) -> list[Tensor]:
        return [cast(nn.Linear, out).weight for out in (*self.block.attention.outputs, self.block.mlp.down)]
