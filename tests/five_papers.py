"""The five papers of this checkout and the disputes beside them: their claims, files of studies and records."""

from pathlib import Path

from attractor.claims.ledger import read_rule_dates
from papers.contested import claims as contested
from papers.coupled_qk import claims as coupled_qk
from papers.fast_slow import claims as fast_slow
from papers.jacobians import claims as jacobians
from papers.psiqrh import claims as psiqrh
from papers.quack import claims as quack

FOLDER = Path(__file__).parents[1] / "papers"
MODULES = (contested, coupled_qk, fast_slow, jacobians, quack, psiqrh)
PAPERS = {FOLDER / module.__name__.split(".")[1]: module.PAPER for module in MODULES}
CLAIMS = tuple(claim for paper in PAPERS.values() for claim in paper.claims)
STUDIES = {file.stem: file for file in sorted(FOLDER.glob("*/studies/*.py"))}
RECORDS = {file.stem: file for file in sorted(FOLDER.glob("*/results/study-*.json"))}
RULE_DATES = {claim: dates for folder in PAPERS for claim, dates in read_rule_dates(folder).items()}
