"""Control and observe the attention logits of any model while it trains, without changing its forward pass.

    QuacK(model, optimizer, tau=1.0)          set the rate of a head's query and key weights by their partners' norms
    FixedRates(model, optimizer, tau=0.1)     set one smaller rate for all query and key weights
    QKClip(model, optimizer, threshold=100.0) scale down the weights of a head whose logits have grown too large
    LogitProbe(model, forward)                record the logits of one fixed batch during training
    REGULARIZERS["spectral"](model)           compute a penalty on attention's weights, to be added to a loss

All but the last must know which rows of which parameter belong to a head; `query_key_heads(model)` returns them. A
module that computes its logits itself calls `observe(self, q, k)`, so that they can be clipped.
"""

from attractor.control.heads import query_key_heads
from attractor.control.layouts import register_view
from attractor.control.norms import NORMS
from attractor.control.probe import LogitProbe
from attractor.control.qk_clip import QKClip
from attractor.control.quack import QuacK
from attractor.control.rates import FixedRates, HeadRates
from attractor.control.regularize import REGULARIZERS, Regularizer
from attractor.control.score_inputs import observe
from attractor.control.views import DotProduct, LatentHeads, QueryKeyHeads, Rows, head_rows

__all__ = [
    "NORMS",
    "REGULARIZERS",
    "DotProduct",
    "FixedRates",
    "HeadRates",
    "LatentHeads",
    "LogitProbe",
    "QKClip",
    "QuacK",
    "QueryKeyHeads",
    "Regularizer",
    "Rows",
    "head_rows",
    "observe",
    "query_key_heads",
    "register_view",
]


def __dir__() -> list[str]:
    return __all__
