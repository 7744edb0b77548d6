"""Our models in Hugging Face's tables, so that AutoModelForCausalLM and its relatives find them in a process that has
attractor. An export brings its own code for those that have not, which must not meet an entry of its own here."""

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from attractor.hf.config import AttractorConfig
from attractor.hf.model import AttractorForCausalLM, AttractorForSequenceClassification

__all__ = ["AttractorConfig", "AttractorForCausalLM", "AttractorForSequenceClassification"]

AutoConfig.register(AttractorConfig.model_type, AttractorConfig)
AutoModelForCausalLM.register(AttractorConfig, AttractorForCausalLM)
AutoModelForSequenceClassification.register(AttractorConfig, AttractorForSequenceClassification)
