"""Wrap attractor's models in Hugging Face's interface; the computation is in `attractor.models`.

The attribute `model` is the attractor model in all classes, so weights have the same names in all of them, and every
class loads what any of them saved. A tied readout is the embedding matrix itself, so nothing needs tying or is saved
twice.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache as HuggingFaceCache
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutput,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from attractor.attention.hooks import capture
from attractor.errors import InputError, require
from attractor.hf.cache import CACHE_NAME, AttractorCache
from attractor.hf.config import AttractorConfig
from attractor.kernels.cross_entropy import NOT_SCORED, linear_cross_entropy, soft_capped
from attractor.models.config import ModelConfig
from attractor.models.fast_slow import FastSlow
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel
from attractor.models.shapes_only import shapes_only

# Arguments with the bounds of packed sequences. They repeat what `position_ids` say, which must be given as well.
PACKED_ROWS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")


class AttractorPreTrainedModel(PreTrainedModel):
    config_class = AttractorConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # mechanisms with a softmax run SDPA
    _tied_weights_keys = {}  # noqa: RUF012

    def __init__(self, config: AttractorConfig) -> None:
        super().__init__(config)
        built = self.task_config(config).build()
        self.model = built
        config.adopt(built.config)
        # Tools that shard or place a model look up every name here among its modules, and fail where one is absent.
        self._no_split_modules = sorted({type(block).__name__ for block in built.layers})
        for tensor in [*self.parameters(), *self.buffers()]:  # initialized by `build`, and not to be initialized again
            tensor._is_hf_initialized = tensor.device.type != "meta"  # type: ignore[attr-defined]
        self.post_init()

    @classmethod
    def of(cls, model: LanguageModel, **rest: Any) -> Self:
        """Wrap an existing model without a copy; `rest` goes to the configuration (eos_token_id, ...)."""
        # Folders exported twice bring two copies of the code, whose classes differ; only the attribute is compared.
        if not hasattr(getattr(model, "config", None), "n_classes"):
            raise InputError(
                f"model must be one of attractor.models for {cls.__name__}.of, got {type(model).__name__}; build one "
                "by config.build(), or import a Hugging Face folder by attractor.hf.import_model"
            )
        with shapes_only():
            wrapper = cls(AttractorConfig.of(model.config, **rest))
        wanted, given = wrapper.model.config.n_classes, model.config.n_classes
        if given != wanted:
            raise InputError(
                f"n_classes must be {wanted} for {cls.__name__}.of, which does not change the model, got {given}; save "
                "the model as it is, and load it with from_pretrained of the wanted class"
            )
        wrapper.model = model
        wrapper.training = model.training
        return wrapper

    def task_config(self, config: AttractorConfig) -> ModelConfig[LanguageModel]:
        """Return the configuration for the task of this class, which may differ from the task of the weights."""
        return config.model_config()

    @property
    def gradient_checkpointing(self) -> bool:
        return self.model.activation_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.model.activation_checkpointing = value

    @property
    def base_model(self) -> "AttractorModel":
        """Return the model without its readout. It consists of the modules of this model, and holds no others."""
        held = vars(self).get("_base_model")
        if held is None or held.model is not self.model:
            held = AttractorModel.of(self.model)
            vars(self)["_base_model"] = held  # not by `setattr`, which would make it a submodule
        held.config = self.config
        return held

    def get_decoder(self) -> "AttractorModel":
        return self.base_model

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether activations are recomputed. PEFT reads this name; newer versions of transformers warn about it."""
        return self.gradient_checkpointing

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embedding = cast(Any, value)

    def get_output_embeddings(self) -> nn.Module | None:
        return None

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        embedding = super().resize_token_embeddings(*args, **kwargs)
        self.model.config = self.model.config.replace(vocab_size=embedding.num_embeddings)
        self.config.adopt(self.model.config)
        return embedding

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize the parameters that a checkpoint does not hold, as attractor does."""
        if next(module.parameters(recurse=False), None) is not None:
            cast(Any, module).reset_parameters()

    def encode(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: AttractorCache | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the hidden states, the auxiliary loss, and which positions are not padding (None: all of them)."""
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise InputError(f"one of input_ids and inputs_embeds must be given, got {given}; give the tokens alone")
        tokens = cast(Tensor, input_ids if inputs_embeds is None else inputs_embeds)
        real = real_positions(tokens, attention_mask, 0 if cache is None else cache.get_seq_length())
        if real is None and attention_mask is not None and position_ids is not None and cache is None:
            # Positions that begin anew split a row into documents only without a mask, whatever the mask holds.
            real = attention_mask.bool() if bool((position_ids.diff() != 1).any()) else None
        return *self.model.hidden(tokens, None if cache is None else cache.held, real, position_ids), real

    def _cache(self, past_key_values: Any, cache: Any, use_cache: bool | None) -> AttractorCache | None:
        """Return the cache to fill, which may be given under either of its names."""
        if past_key_values is not None and cache is not None:
            raise InputError(
                "past_key_values and cache must not be given together, since they are two names of one argument; give "
                f"{CACHE_NAME} alone, its name in the installed transformers"
            )
        given = cache if past_key_values is None else past_key_values
        if isinstance(given, AttractorCache) and given.config == self.model.config:
            return given
        if given is not None:
            kind = "one of another model" if isinstance(given, AttractorCache) else type(given).__name__
            raise InputError(
                f"{CACHE_NAME} must be a cache of this model, got {kind}, which the model would not fill; "
                "give AttractorCache(model.model), or leave it out and go on with what the model returns; with PEFT, "
                "tune prompts in place of prefixes, which are caches of transformers"
            )
        return AttractorCache(self.model) if use_cache else None

    @contextmanager
    def observed(self, hidden_states: bool | None, attentions: bool | None) -> Iterator["Observed"]:
        """Record hidden states and attention maps of the forward passes in the context.

        The hidden states are the residual stream before the blocks and after every block of the fast path, the last
        one after the final norm and multiplied by `logit_scale`. The attention maps are in the order of computation."""
        observed = Observed()
        with ExitStack() as stack:
            if self.config.output_attentions if attentions is None else attentions:
                observed.weights = stack.enter_context(capture("weights"))["weights"]
            if self.config.output_hidden_states if hidden_states is None else hidden_states:
                observed.stream = []
                for module in [self.model.dropout, *fast_blocks(self.model)]:
                    stack.callback(module.register_forward_hook(observed.record).remove)
            yield observed


class Observed:
    def __init__(self) -> None:
        self.weights: list[Tensor] | None = None
        self.stream: list[Tensor] | None = None

    def record(self, module: nn.Module, _: Any, out: Any) -> None:
        assert self.stream is not None
        state = out[0] if isinstance(out, tuple) else out
        self.stream.append(state.mean(2) if state.ndim == 4 else state)  # the readout takes the mean of several streams

    def fields(self, hidden: Tensor) -> dict[str, Any]:
        """Return the fields of the output. `hidden` takes the place of the last block's output."""
        states = None if self.stream is None else (*self.stream[:-1], hidden)
        return {"hidden_states": states, "attentions": None if self.weights is None else tuple(self.weights)}


def fast_blocks(model: LanguageModel) -> list[nn.Module]:
    if isinstance(model, FastSlow):
        return [*model.pre, *model.post]
    return list(model.layers)


class AttractorModel(AttractorPreTrainedModel):
    """The model up to its readout."""

    @property
    def base_model(self) -> "AttractorModel":
        return self

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: AttractorCache | None = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        cache: AttractorCache | None = None,
        **repetitions: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Return the hidden states after the last norm, multiplied by `logit_scale`.

        The arguments are those of `AttractorForCausalLM`."""
        refuse_unknown(repetitions, position_ids)
        cache = self._cache(past_key_values, cache, use_cache)
        with self.observed(output_hidden_states, output_attentions) as seen:
            hidden, *_ = self.encode(input_ids, inputs_embeds, attention_mask, position_ids, cache)
        out = BaseModelOutputWithPast(last_hidden_state=hidden, **seen.fields(hidden) | {CACHE_NAME: cache})
        return out if (self.config.return_dict if return_dict is None else return_dict) else out.to_tuple()


class AttractorForCausalLM(AttractorPreTrainedModel, GenerationMixin):
    accepts_loss_kwargs = True  # num_items_in_batch

    def task_config(self, config: AttractorConfig) -> ModelConfig[LanguageModel]:
        causal_config = config.model_config().replace(n_classes=None)
        if not causal_config.causal:
            raise InputError(
                f"causal must be True for {type(self).__name__}, got False in field 'attractor'; a model that sees "
                "what comes after a position cannot continue text"
            )
        return causal_config

    def get_output_embeddings(self) -> nn.Module:
        """Return the module whose `weight` is the readout, which is the embedding if it is tied."""
        return self.model.embedding if self.model.head is None else self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        if self.model.head is not None:
            self.model.head = cast(Any, new_embeddings)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: AttractorCache | None = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        cache: AttractorCache | None = None,
        **repetitions: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Predict the next tokens.

        attention_mask: B S with 0 at padding, left or right, counted from the first position in the cache.
        position_ids: B T. Without a mask or a cache, positions that start anew in a row start another sequence.
        inputs_embeds: B T D, in place of tokens, as the embedding gives them.
        token_type_ids: as some tokenizers give them; there are no embeddings of types, so they change nothing.
        past_key_values, cache: the names of one argument before transformers 5.24 and since.
        use_cache: None uses a cache only where one is given.
        skip_logits: None skips them in training with labels, where the loss is computed without storing all logits.
        repetitions: what collators and older versions of transformers give beside `position_ids` and the cache.
        """
        refuse_unknown(repetitions, position_ids)
        cache = self._cache(past_key_values, cache, use_cache)
        with self.observed(output_hidden_states, output_attentions) as seen:
            hidden, aux_loss, _ = self.encode(input_ids, inputs_embeds, attention_mask, position_ids, cache)
        readout = self.model.readout
        hidden = hidden.to(readout.device)
        loss = None if labels is None else self._loss(hidden, aux_loss, labels, num_items_in_batch)
        logits = None
        if not (self.training and labels is not None if skip_logits is None else skip_logits):
            logits = F.linear(kept_positions(hidden, logits_to_keep), readout)
            logits = soft_capped(logits, self.model.logit_softcap)
        out = CausalLMOutputWithPast(loss=loss, logits=logits, **seen.fields(hidden) | {CACHE_NAME: cache})
        return out if (self.config.return_dict if return_dict is None else return_dict) else out.to_tuple()

    def _loss(self, hidden: Tensor, aux_loss: Tensor, labels: Tensor, n_items: Tensor | int | None) -> Tensor:
        """Return the mean loss of the next tokens, plus the auxiliary loss.

        With gradient accumulation over a batch of `n_items` scored positions, return the share of this part, so that
        the losses of the parts add up to that of the batch, the auxiliary loss included."""
        targets = F.pad(labels[:, 1:], (0, 1), value=NOT_SCORED).to(hidden.device).flatten()
        if n_items is None:
            return self._mean_loss(hidden, targets) + aux_loss
        n_scored = (targets != NOT_SCORED).sum()
        if not n_scored:  # the mean over no position would be NaN
            return 0.0 * hidden.sum()
        mean = self._mean_loss(hidden, targets)
        return (mean + aux_loss) * (n_scored / n_items)

    def _mean_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(hidden.flatten(0, -2), self.model.readout, targets, self.model.logit_softcap)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: Any, *_: Any, **__: Any) -> Any:
        # Assisted generation of transformers 5.0 asks for a cache without windows by this name.
        if generation_config.cache_implementation not in (None, "dynamic_full"):
            raise InputError(
                f"cache_implementation must be left out, got {generation_config.cache_implementation!r}; models of "
                "attractor bring a cache of their own"
            )
        if isinstance(self.model, RecurrentModel):
            generation_config.use_cache = False  # every iteration would need a cache of its own
        given = model_kwargs.get(CACHE_NAME)
        is_foreign = isinstance(given, HuggingFaceCache) and not isinstance(given, AttractorCache)
        if generation_config.use_cache and (given is None or (is_foreign and given.get_seq_length() == 0)):
            model_kwargs[CACHE_NAME] = AttractorCache(self.model)


# The Trainer's label smoothing shifts the labels of classes in this table alone. Other models would learn to copy.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[AttractorConfig.model_type] = AttractorForCausalLM.__name__


class AttractorForSequenceClassification(AttractorPreTrainedModel):
    accepts_loss_kwargs = False

    def task_config(self, config: AttractorConfig) -> ModelConfig[LanguageModel]:
        return config.model_config().replace(n_classes=config.num_labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput | tuple[Any, ...]:
        """`use_cache` is taken, as trainers of reward models give it, and changes nothing: there is no next token."""
        with self.observed(output_hidden_states, output_attentions) as seen:
            hidden, aux_loss, real = self.encode(input_ids, inputs_embeds, attention_mask, position_ids)
        logits = F.linear(self.model.read(hidden, real), self.model.readout)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config) + aux_loss
        out = SequenceClassifierOutput(loss=loss, logits=logits, **seen.fields(hidden))
        return out if (self.config.return_dict if return_dict is None else return_dict) else out.to_tuple()


def refuse_unknown(repetitions: Mapping[str, Any], position_ids: Tensor | None) -> None:
    """Refuse arguments that a model does not have, and the bounds of packed sequences without their positions.

    `cache_position` is ignored: transformers before 5.4 gives it, and the cache knows its length."""
    for name, value in repetitions.items():
        if name in PACKED_ROWS:
            require(position_ids is not None, name, "given together with position_ids", value)
        elif name != "cache_position":
            raise TypeError(f"forward() got an unexpected keyword argument '{name}'")


def real_positions(tokens: Tensor, attention_mask: Tensor | None, n_cached: int = 0) -> Tensor | None:
    """Return B T: which tokens are not padding. None means all, for which attention has faster implementations."""
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2 or attention_mask.shape[1] != n_cached + tokens.shape[1]:
        raise InputError(
            f"attention_mask must be B S with 0 at padding, for all positions so far, got "
            f"{tuple(attention_mask.shape)} for {n_cached} cached positions and tokens of shape {tuple(tokens.shape)}; "
            f"give what the tokenizer gives, and {CACHE_NAME} as the model returned it"
        )
    real = attention_mask[:, -tokens.shape[1] :].bool()
    # A compiler or exporter cannot look at values, so it always has the mask.
    return None if not torch.compiler.is_compiling() and real.all() else real


def kept_positions(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Return the hidden states whose logits are wanted: a number of last positions (0: all), or those of an index."""
    if isinstance(logits_to_keep, Tensor):
        return hidden[:, logits_to_keep]
    return hidden[:, -logits_to_keep:] if logits_to_keep else hidden
