"""The five papers, one file each: title, authors, printed tables, claims and the rules that judge them.

C is CoupledQK, F FastSlow, L LogitControl (QuacK), J Jacobians and P PsiQRH.
"""

from attractor.evidence.claim import Claim, Paper
from attractor.evidence.papers import coupled_qk, fast_slow, jacobians, logit_control, psiqrh

PAPERS: tuple[Paper, ...] = tuple(module.PAPER for module in (coupled_qk, fast_slow, logit_control, jacobians, psiqrh))
CLAIMS: tuple[Claim, ...] = tuple(claim for paper in PAPERS for claim in paper.claims)
